"use strict";
// Texts come from a dump that may be hostile. They enter the page as textContent alone.
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent), text = number => data.texts[number];
const height = 46, above = 6; // pixels of a row, as in check.css; rows that are drawn beyond those that are seen
function element(name, className, text = "", properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), { className, textContent: text }, properties);
  made.append(...children);
  return made;
}

const heading = (first, second) => element("th", "", first, { scope: "row", title: first + "\n" + second }, element("small", "mono", second));

// cell says whether clients get through. From 0, a number is the index of a finding.
function cell(finding) {
  const [sign, ariaLabel] = { "-1": ["✓", "works"], "-2": ["–", "does not apply"], "-3": ["?", "not known"] }[finding] ?? [];
  if (sign) return element("td", "quiet", sign, { ariaLabel });
  const level = $("f" + finding)?.className ?? "";
  return element("td", level, (level === "broken" ? "✕ " : "• ") + (finding + 1), { ariaLabel: `${level}, finding ${finding + 1}` });
}

// Grid draws those rows of a table that are seen. The table has the focus, and points at one cell.
class Grid {
  constructor(table, heads, rows, texts, draw, open) {
    Object.assign(this, { table, rows, draw, open, box: table.parentElement, columns: heads.length, body: table.createTBody() });
    this.search = rows.map(row => texts(row).join(" ").toLowerCase());
    table.style.setProperty("--columns", heads.length - 1);
    table.createTHead().insertRow().append(...heads.map(([name, className = ""]) => element("th", className, name.slice(0, 24), { scope: "col", title: name })));
    this.box.addEventListener("scroll", () => { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.render(); }); });
    addEventListener("resize", () => this.render());
    table.addEventListener("keydown", event => this.key(event));
    this.body.addEventListener("click", ({ target }) => {
      const td = target.closest("td, th");
      if (td?.parentElement.ariaRowIndex) this.go(td.parentElement.ariaRowIndex - 2, td.cellIndex, td.tagName === "TD");
    });
  }
  select(chosen) {
    this.list = this.rows.filter((row, i) => chosen(row, this.search[i]));
    this.table.ariaRowCount = this.list.length + 1;
    this.box.scrollTop = 0;
    this.go(0, 1);
  }
  render(printed = 0) {
    const first = printed ? 0 : Math.max(0, Math.floor(this.box.scrollTop / height) - above);
    const last = Math.min(this.list.length, printed || first + Math.ceil(this.box.clientHeight / height) + 2 * above);
    const rows = this.list.slice(first, last).map((row, i) => {
      const tr = element("tr", "", "", { ariaRowIndex: first + i + 2 }, ...this.draw(row));
      if (first + i === this.row) Object.assign(tr.cells[this.column], { id: this.table.id + "-at" }).classList.add("at");
      return tr;
    });
    const space = rows => element("tr", "space", "", { ariaHidden: true }, element("td", "", "", { style: `height: ${rows * height}px` }));
    this.body.replaceChildren(space(first), ...rows, space(this.list.length - last));
    this.table.setAttribute("aria-activedescendant", this.table.id + "-at");
  }
  go(row, column, open = false) {
    this.row = Math.max(0, Math.min(this.list.length - 1, row));
    this.column = Math.max(0, Math.min(this.columns - 1, column));
    const y = this.row * height, [first, ...others] = this.table.tHead.rows[0].cells, x = others[this.column - 1];
    this.box.scrollTop = Math.min(y, Math.max(this.box.scrollTop, y - this.box.clientHeight + 2 * height)); // the heading covers a row
    if (x) this.box.scrollLeft = Math.min(x.offsetLeft - first.offsetWidth, Math.max(this.box.scrollLeft, x.offsetLeft + x.offsetWidth - this.box.clientWidth));
    this.render();
    if (open && this.list.length) this.open(this.list[this.row], this.column);
  }
  key(event) {
    const page = Math.floor(this.box.clientHeight / height) - 2, all = this.list.length;
    const [down, right, open] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], PageDown: [page, 0], PageUp: [-page, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
      Home: [-all, 0], End: [all, 0], Enter: [0, 0, true], " ": [0, 0, true] }[event.key] ?? [];
    if (down === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.go(this.row + down, this.column + right, open);
  }
}

// copyable adds a button to a command, unless a shell would read more than words in it.
function copyable(code) {
  code.nextElementSibling?.remove();
  if (!/^[\w ./:,@%='[\]-]+$/.test(code.textContent)) return;
  code.after(element("button", "", "Copy", { type: "button", onclick() {
    getSelection().selectAllChildren(code);
    this.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  } }));
}

// show opens the dialog about a packet, with the drawing of its finding.
function show(title, finding, command) {
  const item = $("f" + finding), svg = item?.querySelector("svg");
  $("title").textContent = title;
  $("cause").textContent = item ? `Finding ${finding + 1}: ${item.querySelector("b").textContent}` : cell(finding).ariaLabel;
  $("command").textContent = command || (item?.querySelector("code").textContent ?? "");
  $("drawing").replaceChildren(...(svg ? [element("p", "note", item.querySelector(".way").textContent), svg.cloneNode(true)] : []));
  copyable($("command"));
  $("dialog").showModal();
  $("title").focus(); // not the button, which an Enter that is held would press
}

const quoted = address => address.includes("[") ? `'${address}'` : address;
const grids = [
  new Grid($("matrix"), [["Service"], ...data.clients.map(client => [client.name])], data.services,
    ([port, address, kind]) => [text(port), address, text(kind)],
    ([port, address, kind, ...cells]) => [heading(text(port), address + "  " + text(kind)), ...cells.map(cell)],
    ([port, address, , ...cells], column) => {
      const client = data.clients[Math.max(0, column - 1)], from = address[0] === "[" ? client.from6 : client.from ?? client.from6;
      show(`${text(port)}, ${address}, from ${client.name}`, cells[Math.max(0, column - 1)], from && `ruledump explain --from ${quoted(from)} --to ${quoted(address)}`);
    }),
  new Grid($("pods"), [["Endpoint"], ["Finding"], ["Connections", "number"], ["Unanswered", "number"], ["Services", "number"], ["Node"]], data.endpoints,
    ([address, pod, node]) => [address, pod, text(node)],
    ([address, pod, node, services, connections, unanswered, finding]) => [heading(pod || address, pod && address), finding < 0 ? element("td", "quiet", "–") : cell(finding),
      ...[connections, unanswered, services].map(count => element("td", "number", count)), element("td", "", text(node), { title: text(node) })],
    ([address, , , , , , finding]) => finding >= 0 && show(address, finding)),
];

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/), hit = [row => row.slice(3).some(cell => cell >= 0), row => row[6] >= 0];
  grids.forEach((grid, i) => grid.select((row, text) => words.every(word => text.includes(word)) && (!$("hit").checked || hit[i](row))));
  const [services, endpoints] = grids.map(({ list, rows }, i) =>
    `${list.length} of ${rows.length}` + (rows.length < data.all[i] ? ` (this page has no room for ${data.all[i] - rows.length} more)` : ""));
  $("count").textContent = `${services} addresses, ${endpoints} endpoints`;
}

for (const code of document.querySelectorAll("li code")) copyable(code);
for (const id of ["filter", "hit"]) $(id).addEventListener("input", filter);
addEventListener("keydown", event => {
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || event.target === $("filter") || $("dialog").open) return;
  event.preventDefault();
  $("filter").focus();
});
for (const [event, rows] of [["beforeprint", 60], ["afterprint", 0]]) addEventListener(event, () => grids.forEach(grid => grid.render(rows)));
filter();
