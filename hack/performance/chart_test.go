package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/hack/compare/figures"
)

func TestCharts(t *testing.T) {
	points := []point{{1000, 10 * time.Millisecond, 5 * time.Millisecond, 20 * time.Microsecond, 3e6}, {10_000, 90 * time.Millisecond, 50 * time.Millisecond, 30 * time.Microsecond, 20e6}}
	beside := figures.Run{Versions: map[string]string{"kube-proxy": "Kubernetes v1.37.2"}, Points: []figures.Point{
		{Contender: "kube-proxy", Services: 1000, FirstSync: figures.Limited{Time: time.Second}, OneChange: figures.Limited{Time: time.Second}, Peak: 100e6},
		{Contender: "nftproxy", Services: 1000, FirstSync: figures.Limited{Time: 20 * time.Millisecond}, OneChange: figures.Limited{Time: time.Millisecond}, Peak: 40e6},
		{Contender: "kube-proxy", Services: 44_000, FirstSync: figures.Limited{Time: 10 * time.Minute, Over: true}, Peak: 500e6},
	}}
	count := func(t *testing.T, svg, what string, want int) {
		t.Helper()
		if n := strings.Count(svg, what); n != want {
			t.Errorf("the chart has %d of %s, want %d", n, what, want)
		}
	}
	t.Run("have a line of kube-proxy in each panel", func(t *testing.T) {
		svg := charts(points, beside)
		count(t, svg, `class="kube-proxy"/>`, 3+5) // lines, and the points of two panels with both figures and one with one
		count(t, svg, "◆ kube-proxy v1.37.2, ", 3)
		count(t, svg, "○ nftproxy in that run", 3)
		count(t, svg, "▲ longer than 10m0s", 1)
		expectXML(t, svg)
	})
	t.Run("do without kube-proxy", func(t *testing.T) {
		svg := charts(points, figures.Run{})
		count(t, svg, "kube-proxy v", 0)
		count(t, svg, "<polyline", 4)
		expectXML(t, svg)
	})
}

func expectXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("the chart is no XML: %v", err)
		}
	}
}
