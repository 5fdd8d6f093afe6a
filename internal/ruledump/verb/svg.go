package verb

import (
	"fmt"
	"html"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
)

// Measures of a drawing, in pixels of SVG. A character of the fixed-width font is 0.6 of its size wide.
const (
	svgColumns   = 110 // characters in a line, before it is wrapped
	svgCharacter = 7.3
	svgLine      = 17
	svgPadding   = 8
	svgLeft      = 40 // of boxes, beside the line that shows the way
	svgBox       = svgColumns*svgCharacter + 2*svgPadding
	svgWidth     = svgLeft + svgBox + 3*svgPadding
)

// svgStyle are the rules of a drawing, for its own style and for the page that has several.
const svgStyle = `
  text { fill: #1f2328; font: 12px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre }
  .title { font-weight: bold; font-size: 13px } .dim { fill: #59636e }
  .page { fill: #ffffff } .hook { fill: #f6f8fa; stroke: #d1d9e0 } .own { fill: #fff8c5; stroke: #9a6700 }
  .other { fill: #ddf4ff; stroke: #0969da } .bad { fill: #ffebe9; stroke: #cf222e; stroke-width: 2 } .good { fill: #dafbe1; stroke: #1a7f37; stroke-width: 2 }
  .kernel { fill: #ffffff; stroke: #59636e; stroke-dasharray: 4 3 } .way { stroke: #59636e; stroke-width: 2.5 } .tip { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .dim { fill: #9198a1 } .page { fill: #0d1117 } .hook { fill: #151b23; stroke: #3d444d } .own { fill: #341a00; stroke: #d29922 }
    .other { fill: #0c2d6b; stroke: #4493f8 } .bad { fill: #490202; stroke: #f85149 } .good { fill: #04260f; stroke: #3fb950 }
    .kernel { fill: #0d1117; stroke: #9198a1 } .way { stroke: #9198a1 } .tip { fill: #9198a1 }
  }
`

// svg is a drawing that grows downwards.
type svg struct {
	strings.Builder
	y float64
}

// svg draws the way of the packet for each outcome, one below the other.
func (e *Explanation) svg() string { return e.drawing("<style>" + svgStyle + "</style>\n") }

// drawing is svg with another element for the style; empty for a page that has the style once.
func (e *Explanation) drawing(style string) string {
	d := &svg{y: 2 * svgPadding}
	for i := range e.Outcomes {
		e.Outcomes[i].draw(d, e.Packet)
	}
	for i, name := range e.NotLookedAt {
		if i == 0 {
			d.text("title", "not looked at")
		}
		d.text("dim", name)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%[1]g" height="%.0[2]f" role="img">`+"\n<title>%s</title>\n%s"+
		`<rect class="page" width="100%%" height="100%%"/>`+"\n%s</svg>\n", svgWidth, d.y+svgPadding, html.EscapeString(e.Packet), style, d.String())
}

func (o *Outcome) draw(d *svg, packet string) {
	d.text("title", o.head)
	d.text("dim", "why: "+o.Why)
	for _, on := range o.DependsOn {
		d.text("dim", on.condition())
	}
	d.y += svgPadding
	begin := d.y
	d.box("kernel", []string{packet})
	for path := o.steps; len(path) > 0; {
		n := 1
		for n < len(path) && path[n].Hook == path[0].Hook {
			n++
		}
		o.drawHook(d, path[:n], n == len(path))
		path = path[n:]
	}
	end := "good"
	if o.DecidedBy != nil || o.Result != "delivered" && o.Result != "untouched" {
		end = "bad"
	}
	to := d.y + svgLine/2 + svgPadding
	d.box(end, []string{o.head})
	const x = svgLeft / 2
	fmt.Fprintf(d, `<path class="way" fill="none" d="M%d %.0fH%dV%.0fH%d"/><path class="tip" d="M%[1]d %.0[4]fl-8 -4v8z"/>`+"\n", svgLeft, begin+svgLine/2+svgPadding, x, to, svgLeft-6)
	d.y += 2 * svgLine
}

// drawHook draws the chains of a hook that the packet came through. If the hook is the
// last one, the last chain decided.
func (o *Outcome) drawHook(d *svg, path evaluator.Path, last bool) {
	frame := d.y
	outside := d.String()
	d.Reset()
	d.y += svgPadding
	d.text("title", string(path[0].Hook))
	d.y += svgPadding / 2
	for len(path) > 0 {
		n := 1
		for n < len(path) && path[n].Chain != nil && path[0].Chain != nil && (path[n].Level > 0 || path[n].Chain == path[0].Chain) {
			n++
		}
		class := "own"
		switch {
		case path[0].Chain == nil:
			class = "kernel"
		case last && n == len(path) && o.Result != "delivered" && o.Result != "untouched":
			class = "bad"
		case path[0].Table.Kernel != nil && path[0].Table.Kernel.Other:
			class = "other"
		}
		var lines []string
		for i := range path[:n] {
			lines = append(lines, path[i].Lines()...)
		}
		d.box(class, lines)
		path = path[n:]
	}
	inside := d.String()
	d.Reset()
	d.WriteString(outside)
	fmt.Fprintf(d, `<rect class="hook" x="%d" y="%.0f" width="%.0f" height="%.0f" rx="6"/>`+"\n%s", svgLeft-svgPadding, frame, svgBox+2*svgPadding, d.y-frame, inside)
	d.y += svgPadding
}

// box draws a box with lines, of which long ones are wrapped.
func (d *svg) box(class string, lines []string) {
	var wrapped []string
	for _, line := range lines {
		wrapped = append(wrapped, wrap(harmless(line), svgColumns)...)
	}
	fmt.Fprintf(d, `<rect class="%s" x="%d" y="%.0f" width="%.0f" height="%d" rx="4"/>`+"\n", class, svgLeft, d.y, svgBox, len(wrapped)*svgLine+2*svgPadding)
	d.y += svgPadding
	for _, line := range wrapped {
		d.line("", svgLeft+svgPadding, line)
	}
	d.y += 2 * svgPadding
}

// text writes lines beside no box.
func (d *svg) text(class, text string) {
	for _, line := range wrap(harmless(text), svgColumns) {
		d.line(class, svgLeft, line)
	}
}

func (d *svg) line(class string, x int, line string) {
	d.y += svgLine
	fmt.Fprintf(d, `<text class="%s" xml:space="preserve" x="%d" y="%.0f">%s</text>`+"\n", class, x, d.y-4, html.EscapeString(strings.ToValidUTF8(line, "?")))
}

// wrap breaks a line at spaces, if it can, into lines of that many characters. Later ones are indented by four more.
func wrap(line string, columns int) (lines []string) {
	indent := strings.Repeat(" ", min(len(line)-len(strings.TrimLeft(line, " ")), columns/2)+4)
	for at := prefix(line, columns); at < len(line); at = prefix(line, columns) {
		if space := strings.LastIndexByte(line[:at], ' '); space > len(indent) {
			at = space
		}
		lines = append(lines, line[:at])
		line = indent + strings.TrimLeft(line[at:], " ")
	}
	return append(lines, line)
}

// prefix returns the number of bytes in the first n characters.
func prefix(text string, n int) int {
	for i := range text {
		if n--; n < 0 {
			return i
		}
	}
	return len(text)
}
