"""The site's first page is the repository's README, and docs/README.md is the order of the others."""

import os
import re
from urllib.parse import urldefrag, urljoin

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
OUTSIDE = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]

SITE = "http://site/"
headings = {}  # the identifiers of each page, by its URL
anchors = []  # page, URL of the page that it links to, identifier

# On a telephone the text of a picture would be too small to read: one scrolls instead. Pictures take the colours of the
# page, also when its reader chose others than those of the system. White on the theme's light blue is hard to read.
STYLE = """<style>
@media (max-width: 700px) { .md-typeset p:has(> img) { overflow-x: auto } .md-typeset p > img { width: 700px; max-width: none } }
[data-md-color-scheme=default] { color-scheme: light }
[data-md-color-scheme=slate] { color-scheme: dark }
[data-md-color-scheme=slate] .md-header { background-color: #1e2129 }
</style>"""


def in_site(path):
    """Returns the site's name of a path of the repository; None for what is no part of the site."""
    return path if path in OUTSIDE else path[len("docs/"):] if path.startswith("docs/") else None


def on_config(config):
    nav = [{"nftproxy": "README.md"}]
    with open(os.path.join(ROOT, "docs/README.md")) as order:
        for line in order:
            if section := re.match(r"\*\*(.*)\*\*$", line):
                pages = []
                nav.append({section[1]: pages})
            elif line.startswith("| ["):
                for target in re.findall(r"\]\(([^)#]*)\)", line):
                    path = in_site(os.path.normpath(os.path.join("docs", target)))
                    if path != "README.md":
                        pages.append(path)
    config["nav"] = nav + ["CHANGELOG.md", {"Reporting a vulnerability": "SECURITY.md"}]
    return config


def on_files(files, config):
    files.remove(files.get_file_from_path("README.md"))
    for name in OUTSIDE:
        files.append(File(name, ROOT, config["site_dir"], config["use_directory_urls"]))
    return files


def on_post_page(output, page, config):
    url = urljoin(SITE, page.url)
    headings[url] = set(re.findall(r' id="([^"]*)"', output))
    for link in re.findall(r'<a href="([^"]*#[^"]+)"', page.content):
        anchors.append((page.file.src_path, *urldefrag(urljoin(url, link))))
    return output.replace("</head>", STYLE + "</head>")


def on_post_build(config):
    """mkdocs looks for pages, and not for headings."""
    for path, url, heading in anchors:
        if url.startswith(SITE) and heading not in headings.get(url, ()):
            raise PluginError(f"{path} links to {url.removeprefix(SITE)}#{heading}, which does not exist")


def on_page_markdown(markdown, page, config, files):
    directory = "" if page.file.src_path in OUTSIDE else "docs"

    def mend(match):
        start, target, end = match[1] or match[4], match[2] or match[5], match[3] or ""
        target, hash, anchor = target.partition("#")
        if not target or "://" in target:
            return match[0]
        path = os.path.normpath(os.path.join(directory, target))
        if not os.path.exists(os.path.join(ROOT, path)):
            raise PluginError(f"{page.file.src_path} links to {target}, which does not exist")
        inside = in_site(path) if os.path.isfile(os.path.join(ROOT, path)) else None
        return start + (inside or f"{config['repo_url']}/blob/main/{path}") + hash + anchor + end

    return re.sub(r"(?m)(\]\()([^)\s]+)(\))|^(\[[^]]+\]: )(\S+)$", mend, markdown)
