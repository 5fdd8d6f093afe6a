package verb

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"
	"time"
)

// The page is put together without html/template and text/template: either makes the linker keep all exported methods,
// which adds 5.8 MB to ruledump's 24.0. In their place markup escapes each text, and the tables are one block of JSON.
var (
	//go:embed check.html
	checkHTML string
	//go:embed check.css
	checkCSS string
	//go:embed check.js
	checkJS string
)

// Bounds of the page, which has at most 5 MB, whatever the dump has.
const (
	maxPageTables   = 3_800_000 // bytes of the tables' JSON; the worst rows stay
	maxPageRows     = 60_000    // rows of a table, before its bytes are counted
	maxPageFindings = 900_000   // bytes of findings, of which drawings may take half; the worst findings stay
	maxPageDrawn    = 20        // findings with a drawing: each drawing walks a packet
	maxPageNames    = 40        // names in a list
	maxPageText     = 300       // bytes of a text
)

// HTML returns a page that is one file, runs without a server and fetches nothing: its policy allows only its own script
// and style. Findings are plain HTML; check.js draws the tables from a block of JSON.
func (c *Check) HTML() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
	}
	style := checkCSS + ".drawing {" + svgStyle + "}\n"
	var head, findings, node markup
	c.addHead(&head)
	c.addFindings(&findings)
	addNames(&node, "Not looked at", c.NotLookedAt, len(c.NotLookedAt))
	// One pass: nothing looks for marks in what was put in.
	return strings.NewReplacer(
		"{{title}}", html.EscapeString(plain(c.headline())), "{{scriptHash}}", hash(checkJS), "{{styleHash}}", hash(style), "{{style}}", style, "{{script}}", checkJS,
		"{{head}}", head.String(), "{{findings}}", findings.String(), "{{node}}", node.String(), "{{data}}", c.tables(),
	).Replace(checkHTML)
}

// constant is HTML of this program: a variable string becomes one only by a conversion.
type constant string

// markup is HTML under construction.
type markup struct{ strings.Builder }

// add appends HTML in which each $ stands for one of the values. Their texts may have any bytes.
func (m *markup) add(page constant, values ...any) {
	for i, part := range strings.Split(string(page), "$") {
		if i > 0 {
			m.WriteString(html.EscapeString(plain(fmt.Sprint(values[i-1]))))
		}
		m.WriteString(part)
	}
}

// plain cuts a text, and spells out what cannot be seen in it.
func plain(text string) string {
	if len(text) > maxPageText {
		text = text[:maxPageText] + "…"
	}
	return harmless(strings.ToValidUTF8(text, "\uFFFD"))
}

// addNames adds a list of names, if there are any. A long one is folded.
func addNames[T any](m *markup, title string, names []T, total int) {
	if len(names) == 0 {
		return
	}
	begin, end := constant("<div><dt>$</dt><dd><ul>"), constant("</ul></dd></div>\n")
	if total > 4 {
		begin, end = "<div><dt>$</dt><dd><details><summary>$ and $ more</summary><ul>", "</ul></details></dd></div>\n"
	}
	m.add(begin, title, names[0], total-1)
	names = names[:min(len(names), maxPageNames)]
	for _, name := range names {
		m.add("<li>$</li>", name)
	}
	if more := total - len(names); more > 0 {
		m.add("<li>and $ more</li>", more)
	}
	m.add(end)
}

// headline is the verdict in a line.
func (c *Check) headline() string {
	broken, all := map[string]bool{}, map[string]bool{}
	for _, s := range c.Services {
		all[s.ServicePort] = true
		if c.rank(s.Cells) == 0 {
			broken[s.ServicePort] = true
		}
	}
	text := map[verdict]string{verdictWorks: "nothing is broken", verdictBroken: "broken", verdictUnknown: "not known whether all works"}[c.Verdict]
	if len(broken) > 0 {
		text = fmt.Sprintf("%d of %d Service ports are broken", len(broken), len(all))
	}
	return cmp.Or(c.nodeText(), "this node") + ": " + text
}

// rank orders rows by their cells, the worst first: 0 broken, 1 not known, 2 neither.
func (c *Check) rank(cells []int) int {
	switch {
	case slices.ContainsFunc(cells, func(i int) bool { return i >= 0 && i < len(c.Findings) && c.Findings[i].Level == levelBroken }):
		return 0
	case slices.Contains(cells, cellUndecided):
		return 1
	}
	return 2
}

// addHead adds what an operator looks at first.
func (c *Check) addHead(m *markup) {
	m.add("<h1>$</h1>\n<p>ruledump check, $</p>\n<dl>\n", c.headline(), moment(c.Taken))
	const tile = "<div><dt>$</dt><dd class=\"$\">$<small>$</small></dd></div>\n"
	unanswered := 0
	for _, e := range c.Endpoints {
		unanswered += e.Unanswered
	}
	m.add(tile, "Endpoints", "", len(c.Endpoints), fmt.Sprint(unanswered, " connections unanswered"))
	if k := c.Conntrack; k != nil {
		m.add(`<div><dt>Connection tracking</dt><dd>$ of $ entries<meter max="$" value="$"></meter>`, k.Entries, k.Limit, k.Limit, k.Entries)
		m.add("<small>$ not inserted, $ dropped, $ dropped early</small></dd></div>\n", k.InsertFailed, k.Drop, k.EarlyDrop)
	}
	m.add(tile, "Proxy", c.Proxy.State, c.Proxy.State, cmp.Or(c.Proxy.Why, "last sync: "+orDash(moment(c.Proxy.LastSync))))
	if n := c.Proxy.Repairs; n > 0 {
		m.add(tile, "Repairs of the tables", "", n, "ruledump watch names who changes them")
	}
	m.add("</dl>")
}

// moment is a time for people; empty if it is not known.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.DateTime + " UTC")
}

func (c *Check) addFindings(m *markup) {
	for i := range c.Findings {
		if m.Len() > maxPageFindings {
			m.add("<li>$ more: <code>ruledump check -o json</code> has all</li>\n", len(c.Findings)-i)
			return
		}
		f := &c.Findings[i]
		m.add("<li class=\"$\" id=\"f$\"><div><h3><span>$ $</span> <b>$</b></h3>\n<p>$</p>\n<p class=\"command\"><code>$</code></p></div>\n<dl>", f.Level, i, i+1, f.Level, f.Cause, f.Why, f.More)
		addNames(m, "Services", f.Services, f.ServicesTotal)
		addNames(m, "Clients", f.Clients, len(f.Clients))
		addNames(m, "Endpoints", f.Endpoints, f.EndpointsTotal)
		m.add("</dl>\n")
		if i < maxPageDrawn && f.From != "" {
			c.addDrawing(m, f.From, f.To)
		}
		m.add("</li>\n")
	}
}

// addDrawing adds the drawing of a packet's way, if there is one and it has room.
func (c *Check) addDrawing(m *markup, from, to string) {
	packet, err := parsePacket(c.rules, from, to, "")
	e := &Explanation{}
	if err == nil {
		e, err = Explain(c.rules, packet)
	}
	if err != nil {
		return
	}
	if drawing := harmless(e.drawing("")); m.Len()+len(drawing) < maxPageFindings/2 {
		m.add(`<details><summary class="way">The way of a packet from $ to $</summary><div class="drawing" tabindex="0">`, from, to)
		m.WriteString(drawing)
		m.add("</div></details>")
	}
}

// tables returns the JSON that check.js reads, with as many rows as the page has room for, the worst ones first. A row of
// services is Service port, address, kind and cells; one of endpoints is address, pod, node, Service ports, connections,
// those of them that are unanswered, and the finding. Texts that may repeat are numbers in texts.
func (c *Check) tables() string {
	services := slices.SortedStableFunc(slices.Values(c.Services), func(a, b CheckService) int { return cmp.Compare(c.rank(a.Cells), c.rank(b.Cells)) })
	endpoints := slices.SortedStableFunc(slices.Values(c.Endpoints), func(a, b CheckEndpoint) int {
		return cmp.Or(cmp.Compare(uint(a.Finding), uint(b.Finding)), cmp.Compare(b.Unanswered, a.Unanswered)) // as uint, -1 is the largest
	})
	clients := []CheckClient{}
	for _, client := range c.Clients {
		clients = append(clients, CheckClient{plain(client.Name), plain(client.Kind), plain(client.From), plain(client.From6)})
	}
	for limit := maxPageRows; ; limit /= 2 {
		numbers, texts, rows, pods := map[string]int{}, []string{}, [][]any{}, [][]any{}
		number := func(text string) int {
			if _, known := numbers[text]; !known {
				numbers[text], texts = len(texts), append(texts, plain(text))
			}
			return numbers[text]
		}
		for _, s := range services[:min(len(services), limit)] {
			row := []any{number(s.ServicePort), plain(s.Address), number(s.Kind)}
			for _, cell := range s.Cells {
				row = append(row, cell)
			}
			rows = append(rows, row)
		}
		for _, e := range endpoints[:min(len(endpoints), limit)] {
			pods = append(pods, []any{e.Address.String(), plain(e.Pod), number(e.Node), e.Services, e.Connections, e.Unanswered, e.Finding})
		}
		data, _ := json.Marshal(map[string]any{"clients": clients, "texts": texts, "services": rows, "endpoints": pods, "all": []int{len(services), len(endpoints)}})
		if len(data) <= maxPageTables || limit == 0 {
			return string(data) // numbers and texts always marshal
		}
	}
}
