package verb

import (
	"fmt"
	"html"
	"io"
	"strings"
	"unicode/utf8"
)

// Measures of the drawing, in pixels.
const (
	charWidth  = 7.9 // of a monospaced font of 13 px
	lineHeight = 19
	padding    = 11
	gapX       = 90
	gapY       = 22
	margin     = 24
	top        = 78
)

// shapes is the style sheet without colours.
const shapes = `
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }
.title { font-size: 17px; font-weight: bold; }
.name { font-weight: bold; }
.edge { fill: none; stroke-width: 1.5; }
.dead { stroke-dasharray: 5 3; }
`

// colours is a style sheet of colours: the paper, names, other text, boxes, their lines, the lines of the first and of
// the last column, dead boxes and their lines.
const colours = `
.paper { fill: %[1]s; } text { fill: %[3]s; } .title, .name { fill: %[2]s; }
.box { fill: %[4]s; stroke: %[5]s; } .c0 { stroke: %[6]s; } .c2 { stroke: %[7]s; }
.edge { stroke: %[5]s; } .tip { fill: %[5]s; stroke: none; }
.box.dead { fill: %[8]s; stroke: %[9]s; } .edge.dead { stroke: %[9]s; } .tip-dead { fill: %[9]s; stroke: none; }
`

// deadTip is the tip of edges to a dead box.
const deadTip = "tip-dead"

// style is light, or dark if the reader prefers that. Variables would be shorter, but not all programs know them.
var style = shapes +
	fmt.Sprintf(colours, "#ffffff", "#1f2430", "#4f5866", "#f2f5fa", "#7b8794", "#2457a6", "#1c7a4a", "#fdf1f0", "#b3261e") +
	"@media (prefers-color-scheme: dark) {" +
	fmt.Sprintf(colours, "#14171d", "#e7eaf0", "#b4bcc9", "#1f242d", "#7f8b9c", "#8ab4f8", "#7fd6a5", "#2c1c1d", "#ff8a80") + "}\n"

// place is where a box is drawn.
type place struct{ x, y, width, height float64 }

// SVG draws the graph as a picture that loads nothing from elsewhere.
func (g *Graph) SVG(w io.Writer) error {
	places, width, height := g.layout()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">`+"\n", width, height, width, height, html.EscapeString(g.Title))
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", html.EscapeString(g.Title), style)
	b.WriteString("<defs>")
	for _, tip := range []string{"tip", deadTip} {
		fmt.Fprintf(&b, `<marker id="%s" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="%[1]s" d="M0,0 L8,4 L0,8 z"/></marker>`, tip)
	}
	b.WriteString("</defs>\n")
	fmt.Fprintf(&b, `<rect class="paper" width="%.0f" height="%.0f"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="34">%s</text>`+"\n", margin, html.EscapeString(g.Title))
	for column, heading := range headings {
		if x, ok := columnX(g, places, column); ok {
			fmt.Fprintf(&b, `<text x="%.0f" y="%d">%s</text>`+"\n", x, top-14, heading)
		}
	}
	for _, e := range g.Edges {
		writeEdge(&b, places[e.From], places[e.To], e.To.Dead)
	}
	for column, boxes := range g.Columns {
		for _, box := range boxes {
			writeBox(&b, box, places[box], column)
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func columnX(g *Graph, places map[*Box]place, column int) (float64, bool) {
	if len(g.Columns[column]) == 0 {
		return 0, false
	}
	return places[g.Columns[column][0]].x, true
}

// layout puts each column's boxes below each other, in the middle of the height.
func (g *Graph) layout() (places map[*Box]place, width, height float64) {
	places = map[*Box]place{}
	x := float64(margin)
	heights := [columns]float64{}
	for column, boxes := range g.Columns {
		widest := 0.0
		for _, b := range boxes {
			p := size(b)
			widest = max(widest, p.width)
			heights[column] += p.height + gapY
		}
		for _, b := range boxes {
			p := size(b)
			places[b] = place{x, 0, widest, p.height}
		}
		if len(boxes) > 0 {
			x += widest + gapX
		}
		height = max(height, heights[column])
	}
	for column, boxes := range g.Columns {
		y := top + (height-heights[column])/2
		for _, b := range boxes {
			p := places[b]
			p.y = y
			places[b] = p
			y += p.height + gapY
		}
	}
	titleWidth := 2*margin + float64(utf8.RuneCountInString(g.Title))*charWidth*1.4
	return places, max(x-gapX+margin, titleWidth), top + height
}

func size(b *Box) place {
	longest := 0
	for _, line := range b.Lines {
		longest = max(longest, utf8.RuneCountInString(line))
	}
	return place{width: float64(longest)*charWidth + 2*padding, height: float64(len(b.Lines)*lineHeight) + padding}
}

func writeBox(b *strings.Builder, box *Box, p place, column int) {
	class := fmt.Sprintf("box c%d", column)
	if box.Dead {
		class = "box dead"
	}
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="7"/>`+"\n", class, p.x, p.y, p.width, p.height)
	for i, line := range box.Lines {
		name := ""
		if i == 0 {
			name = ` class="name"`
		}
		fmt.Fprintf(b, `<text%s x="%.1f" y="%.1f">%s</text>`+"\n", name, p.x+padding, p.y+padding/2+float64((i+1)*lineHeight)-5, html.EscapeString(line))
	}
}

func writeEdge(b *strings.Builder, from, to place, dead bool) {
	class, tip := "edge", "tip"
	if dead {
		class, tip = "edge dead", deadTip
	}
	x1, y1, x2, y2 := from.x+from.width, from.y+from.height/2, to.x-2, to.y+to.height/2
	middle := (x1 + x2) / 2
	fmt.Fprintf(b, `<path class="%s" marker-end="url(#%s)" d="M%.1f,%.1f C%.1f,%.1f %.1f,%.1f %.1f,%.1f"/>`+"\n", class, tip, x1, y1, middle, y1, middle, y2, x2, y2)
}

// DOT writes the graph for Graphviz.
func (g *Graph) DOT(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph {\n  label=%q; labelloc=t; rankdir=LR; node [shape=box, style=rounded, fontname=monospace];\n", g.Title)
	names := map[*Box]string{}
	for column, boxes := range g.Columns {
		fmt.Fprintf(&b, "  subgraph { rank=same;\n")
		for i, box := range boxes {
			names[box] = fmt.Sprintf("c%d_%d", column, i)
			style := ""
			if box.Dead {
				style = `, style="rounded,dashed", color=red`
			}
			fmt.Fprintf(&b, "    %s [label=%q%s];\n", names[box], strings.Join(box.Lines, "\n"), style)
		}
		b.WriteString("  }\n")
	}
	for _, e := range g.Edges {
		fmt.Fprintf(&b, "  %s -> %s;\n", names[e.From], names[e.To])
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
