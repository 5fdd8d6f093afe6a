package main

import (
	"fmt"
	"math"
	"strings"
)

// Sizes in the chart, in pixels. There are three panels beside each other.
const (
	panelWidth, panelHeight = 215, 230
	left, top, below        = 60, 40, 50
	// Four lines of text below each panel name what is in it.
	width, height = 3*(left+panelWidth+15) + 10, top + panelHeight + below + 4*15
)

// line is one line of a panel, in the color of a class of chartStyle.
type line struct {
	name, class string
	values      []float64
}

// compared is a figure of kube-proxy, and that of nftproxy in the same run. The run is
// another one than that of the lines.
type compared struct {
	name                string
	kubeProxy, nftproxy float64
}

// comparedServices is the number of Services in the run of kube-proxy v1.36.2 (nftables mode, its defaults) beside
// nftproxy a302040: the first table in docs/measurements-kube-proxy.md. Each had 2 endpoints, as here. That page has no
// other number of Services with 2 endpoints, so there is no line.
const comparedServices = 10_000

var (
	// Row "start, no tables", the time of the Syncs: 27.2 s and 0.13 s.
	comparedStart = compared{"first Sync", 27_200, 130}
	// Row "one more Service, median", the time of the Syncs: 12.2 s and 0.3 ms.
	comparedChange = compared{"one more Service", 12_200, 0.3}
	// Row "peak memory, with the programs that it runs".
	comparedMemory = compared{"process, peak", 491, 71}
)

const chartStyle = `<style>
  text { fill: #1f2328 } .paper { fill: #ffffff } .grid { stroke: #d1d9e0 }
  .own { --c: #0969da } .kernel { --c: #9a6700 } .kube-proxy { --c: #cf222e } .own, .kernel, .kube-proxy { fill: var(--c); stroke: var(--c) }
  polyline { stroke-width: 1.5 } polyline.own, polyline.kernel, circle.beside { fill: none } text.own, text.kernel, text.kube-proxy { stroke: none }
  circle.beside { stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .paper { fill: #0d1117 } .grid { stroke: #3d444d }
    .own { --c: #4493f8 } .kernel { --c: #d29922 } .kube-proxy { --c: #ff7b72 }
  }
</style>
`

// charts draws all figures as an SVG document. Both axes of each panel are logarithmic.
func charts(points []point) string {
	var services []float64
	first, kernel := line{name: "first Sync", class: "own"}, line{name: "the kernel's part", class: "kernel"}
	change, heap := line{name: "one more Service", class: "own"}, line{name: "model and backend: heap", class: "own"}
	for _, p := range points {
		services = append(services, float64(p.services))
		first.values = append(first.values, p.firstSync.Seconds()*1e3)
		kernel.values = append(kernel.values, p.kernel.Seconds()*1e3)
		change.values = append(change.values, p.oneChange.Seconds()*1e3)
		heap.values = append(heap.values, p.heap/1e6)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, chartStyle+`<rect class="paper" width="%d" height="%d"/>`+"\n", width, height)
	panel(&b, 0, "First Sync, ms", services, comparedStart, first, kernel)
	panel(&b, 1, "One change, ms", services, comparedChange, change)
	panel(&b, 2, "Memory, MB", services, comparedMemory, heap)
	b.WriteString("</svg>\n")
	return b.String()
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

func panel(b *strings.Builder, number int, title string, services []float64, beside compared, lines ...line) {
	x0 := float64(number*(left+panelWidth+15) + left)
	values := []float64{beside.kubeProxy, beside.nftproxy}
	for _, l := range lines {
		values = append(values, l.values...)
	}
	x, y := newAxis(services...), newAxis(values...)
	px := func(v float64) float64 { return x0 + panelWidth*x.at(v) }
	py := func(v float64) float64 { return top + panelHeight*(1-y.at(v)) }

	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, s)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="20" font-size="14" font-weight="bold">%s</text>`+"\n", x0, title)
	grid := func(x1, y1, x2, y2 float64) {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>`+"\n", x1, y1, x2, y2)
	}
	for e := x.from; e <= x.to; e++ {
		v := math.Pow(10, e)
		grid(px(v), top, px(v), top+panelHeight)
		text(px(v), top+panelHeight+16, "middle", fmt.Sprintf("%g", v))
	}
	for e := y.from; e <= y.to; e++ {
		v := math.Pow(10, e)
		grid(x0, py(v), x0+panelWidth, py(v))
		text(x0-6, py(v)+4, "end", fmt.Sprintf("%g", v))
	}
	text(x0+panelWidth/2, top+panelHeight+34, "middle", "Services with 2 endpoints each")
	legends := 0
	legend := func(class, name string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" class="%s">%s</text>`+"\n", x0+6, top+panelHeight+below+8+15*legends, class, name)
		legends++
	}
	for _, l := range lines {
		var path []string
		for j, v := range l.values {
			path = append(path, fmt.Sprintf("%.1f,%.1f", px(services[j]), py(v)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" class="%s"/>`+"\n", px(services[j]), py(v), l.class)
		}
		fmt.Fprintf(b, `<polyline points="%s" class="%s"/>`+"\n", strings.Join(path, " "), l.class)
		legend(l.class, l.name)
	}
	x1, y1 := px(comparedServices), py(beside.kubeProxy)
	fmt.Fprintf(b, `<path d="M%.1f %.1fl5 5l-5 5l-5 -5z" class="kube-proxy"/>`+"\n", x1, y1-5)
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" class="own beside"/>`+"\n", x1, py(beside.nftproxy))
	legend("kube-proxy", "◆ kube-proxy v1.36.2, "+beside.name)
	legend("own", "○ nftproxy in that run")
}
