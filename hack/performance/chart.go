package main

import (
	"fmt"
	"math"
	"strings"
)

// Sizes in the chart, in pixels. There are three panels beside each other.
const (
	panelWidth, panelHeight = 280, 220
	left, top, below        = 55, 40, 45
	width, height           = 3*(left+panelWidth+15) + 15, top + panelHeight + below
)

// line is one line of a panel.
type line struct {
	name, color string
	values      []float64
}

// charts draws all figures as an SVG document. Both axes of each panel are logarithmic.
func charts(points []point) string {
	var services []float64
	first, kernel := line{name: "first Sync", color: "#1f5fa8"}, line{name: "the kernel's part", color: "#c7762b"}
	change, heap := line{name: "one more Service", color: "#1f5fa8"}, line{name: "model and backend", color: "#1f5fa8"}
	for _, p := range points {
		services = append(services, float64(p.services))
		first.values = append(first.values, p.firstSync.Seconds()*1e3)
		kernel.values = append(kernel.values, p.kernel.Seconds()*1e3)
		change.values = append(change.values, p.oneChange.Seconds()*1e3)
		heap.values = append(heap.values, p.heap/1e6)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	panel(&b, 0, "First Sync, ms", services, first, kernel)
	panel(&b, 1, "One change, ms", services, change)
	panel(&b, 2, "Heap, MB", services, heap)
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

func panel(b *strings.Builder, number int, title string, services []float64, lines ...line) {
	x0 := float64(number*(left+panelWidth+15) + left)
	var values []float64
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
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", x1, y1, x2, y2)
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
	for i, l := range lines {
		var path []string
		for j, v := range l.values {
			path = append(path, fmt.Sprintf("%.1f,%.1f", px(services[j]), py(v)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", px(services[j]), py(v), l.color)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(path, " "), l.color)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="%s">%s</text>`+"\n", x0+8, top+14+14*i, l.color, l.name)
	}
}
