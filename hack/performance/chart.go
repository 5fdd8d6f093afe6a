package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/hack/compare/figures"
)

// Sizes in the chart, in pixels. There are three panels beside each other.
const (
	panelWidth, panelHeight = 215, 230
	left, top, below        = 60, 40, 50
	// Five lines of text below each panel name what is in it.
	width, height = 3*(left+panelWidth+15) + 10, top + panelHeight + below + 5*15
)

// line is one line of a panel, in the color of a class of chartStyle.
type line struct {
	name, class string
	points      []at
	// mark is the shape of each point.
	mark mark
	// apart says that no line joins the points.
	apart bool
}

// at is a point of a line. over says that the figure is larger: measuring ended at a limit.
type at struct {
	services, value float64
	over            bool
}

// mark is an SVG element of a point, with its place.
type mark func(x, y float64, class string) string

func dot(x, y float64, class string) string {
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="2.5" class="%s"/>`, x, y, class)
}

func circle(x, y float64, class string) string {
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="4" class="%s beside"/>`, x, y, class)
}

func diamond(x, y float64, class string) string {
	return fmt.Sprintf(`<path d="M%.1f %.1fl4 4l-4 4l-4 -4z" class="%s"/>`, x, y-4, class)
}

func triangle(x, y float64, class string) string {
	return fmt.Sprintf(`<path d="M%.1f %.1fl5 9h-10z" class="%s"/>`, x, y-6, class)
}

const chartStyle = `<style>
  text { fill: #1f2328 } .paper { fill: #ffffff } .grid { stroke: #d1d9e0 }
  .own { --c: #0969da } .kernel { --c: #9a6700 } .kube-proxy { --c: #cf222e } .own, .kernel, .kube-proxy { fill: var(--c); stroke: var(--c) }
  polyline { stroke-width: 1.5 } polyline.own, polyline.kernel, polyline.kube-proxy, circle.beside { fill: none } text.own, text.kernel, text.kube-proxy { stroke: none }
  circle.beside { stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .paper { fill: #0d1117 } .grid { stroke: #3d444d }
    .own { --c: #4493f8 } .kernel { --c: #d29922 } .kube-proxy { --c: #ff7b72 }
  }
</style>
`

// charts draws all figures as an SVG document, with those of the two proxies beside each other. Both axes of each panel
// are logarithmic.
func charts(points []point, beside figures.Run) string {
	own := func(name, class string, of func(point) float64) line {
		l := line{name: name, class: class, mark: dot}
		for _, p := range points {
			l.points = append(l.points, at{services: float64(p.services), value: of(p)})
		}
		return l
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, chartStyle+`<rect class="paper" width="%d" height="%d"/>`+"\n", width, height)
	panel(&b, 0, "First Sync, ms", append([]line{
		own("first Sync", "own", func(p point) float64 { return milliseconds(p.firstSync) }),
		own("the kernel's part", "kernel", func(p point) float64 { return milliseconds(p.kernel) }),
	}, linesBeside(beside, "Syncs at the start", func(p figures.Point) figures.Limited { return p.FirstSync })...))
	panel(&b, 1, "One change, ms", append([]line{
		own("one more Service", "own", func(p point) float64 { return milliseconds(p.oneChange) }),
	}, linesBeside(beside, "Syncs", func(p figures.Point) figures.Limited { return p.OneChange })...))
	panel(&b, 2, "Memory, MB", append([]line{
		own("model and backend: heap", "own", func(p point) float64 { return p.heap / 1e6 }),
	}, memoryBeside(beside)...))
	b.WriteString("</svg>\n")
	return b.String()
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// linesBeside are the times of the proxies in the run beside, with what each figure is.
func linesBeside(run figures.Run, what string, of func(figures.Point) figures.Limited) []line {
	return besideOf(run, what, func(p figures.Point) at {
		f := of(p)
		return at{value: milliseconds(f.Time), over: f.Over}
	})
}

func memoryBeside(run figures.Run) []line {
	return besideOf(run, "process, peak", func(p figures.Point) at { return at{value: float64(p.Peak) / 1e6} })
}

// besideOf makes a line for each proxy of a run.
func besideOf(run figures.Run, what string, of func(figures.Point) at) (lines []line) {
	for _, l := range []line{
		{name: "◆ " + versionOf(run) + ", " + what, class: "kube-proxy", mark: diamond},
		{name: "○ nftproxy in that run", class: "own", mark: circle, apart: true},
	} {
		for _, p := range run.Points {
			a := of(p)
			a.services = float64(p.Services)
			if (p.Contender == "kube-proxy") == (l.class == "kube-proxy") && a.value > 0 {
				l.points = append(l.points, a)
			}
		}
		if len(l.points) > 0 {
			lines = append(lines, l)
		}
	}
	return lines
}

// versionOf names Kubernetes' kube-proxy in a run. It prints "Kubernetes v1.37.2".
func versionOf(run figures.Run) string {
	return strings.Replace(run.Versions["kube-proxy"], "Kubernetes", "kube-proxy", 1)
}

// axis is a logarithmic axis over whole powers of ten.
type axis struct{ from, to float64 }

func newAxis(values ...float64) axis {
	a := axis{math.Inf(1), math.Inf(-1)}
	for _, v := range values {
		a.from, a.to = min(a.from, math.Floor(math.Log10(v))), max(a.to, math.Ceil(math.Log10(v)))
	}
	if a.to == a.from {
		a.to++
	}
	return a
}

// at returns where a value is, from 0 to 1.
func (a axis) at(value float64) float64 { return (math.Log10(value) - a.from) / (a.to - a.from) }

// plane is the area of a panel in which points are.
type plane struct {
	b    *strings.Builder
	x0   float64
	x, y axis
}

func (p plane) px(v float64) float64 { return p.x0 + panelWidth*p.x.at(v) }
func (p plane) py(v float64) float64 { return top + panelHeight*(1-p.y.at(v)) }

func (p plane) text(x, y float64, anchor, s string) {
	fmt.Fprintf(p.b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, s)
}

func panel(b *strings.Builder, number int, title string, lines []line) {
	var services, values []float64
	for _, l := range lines {
		for _, a := range l.points {
			services, values = append(services, a.services), append(values, a.value)
		}
	}
	p := plane{b: b, x0: float64(number*(left+panelWidth+15) + left), x: newAxis(services...), y: newAxis(values...)}
	fmt.Fprintf(b, `<text x="%.1f" y="20" font-size="14" font-weight="bold">%s</text>`+"\n", p.x0, title)
	p.grid()
	p.text(p.x0+panelWidth/2, top+panelHeight+34, "middle", "Services with 2 endpoints each")
	legends, limit := 0, 0.0
	legend := func(class, name string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" class="%s">%s</text>`+"\n", p.x0+6, top+panelHeight+below+8+15*legends, class, name)
		legends++
	}
	for _, l := range lines {
		limit = max(limit, p.draw(l))
		legend(l.class, l.name)
	}
	if limit > 0 {
		legend("kube-proxy", fmt.Sprintf("▲ longer than %v", time.Duration(limit*float64(time.Millisecond))))
	}
}

func (p plane) grid() {
	grid := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>`+"\n", x1, y1, x2, y2)
	}
	for e := p.x.from; e <= p.x.to; e++ {
		v := math.Pow(10, e)
		grid(p.px(v), top, p.px(v), top+panelHeight)
		p.text(p.px(v), top+panelHeight+16, "middle", fmt.Sprintf("%g", v))
	}
	for e := p.y.from; e <= p.y.to; e++ {
		v := math.Pow(10, e)
		grid(p.x0, p.py(v), p.x0+panelWidth, p.py(v))
		p.text(p.x0-6, p.py(v)+4, "end", fmt.Sprintf("%g", v))
	}
}

// draw draws a line, and returns the limit at which points of it are, 0 if none is.
func (p plane) draw(l line) (limit float64) {
	var path []string
	for _, a := range l.points {
		x, y, mark := p.px(a.services), p.py(a.value), l.mark
		if a.over {
			mark, limit = triangle, a.value
		}
		path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
		fmt.Fprintln(p.b, mark(x, y, l.class))
	}
	if !l.apart {
		fmt.Fprintf(p.b, `<polyline points="%s" class="%s"/>`+"\n", strings.Join(path, " "), l.class)
	}
	return limit
}
