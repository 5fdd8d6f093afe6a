"""Makes a report, as of proxytest -o json, from a column of the page that is there: matrix-kept.py PAGE COLUMN."""
import json
import sys

page, column = sys.argv[1:]
results, at = {}, None
for line in open(page, encoding="utf-8"):
    cells = [c.strip() for c in line.strip("|\n ").split("|")]
    if cells[0] == "case" and column in cells:
        at = cells.index(column)
    elif at and line.startswith("| `") and len(cells) > at and cells[0] != f"`{column}`" and cells[at] in ("same", "known", "new", "–"):
        name = cells[0].strip("`")
        results[name] = {"case": name, "verdict": "" if cells[at] == "–" else cells[at]}
    elif cells[0] == column and len(cells) == 3:
        for name in cells[2].replace("`", "").split(", "):
            result = results[name]
            if result["verdict"]:
                result.setdefault("differences", []).append({"known": cells[1]})
            else:
                result["lacks"] = cells[1]
if not results:
    sys.exit(f"{page} has no column {column}")
# A dash without a reason is a case that this proxy never met.
json.dump({"results": [r for r in results.values() if r["verdict"] or "lacks" in r]}, sys.stdout)
