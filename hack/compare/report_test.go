package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/hack/compare/figures"
)

func measured() *report {
	small, large := size{1000, 2}, size{44000, 2}
	none := span{none: true}
	r := &report{machine: "Linux 6.18, 2 processors", commit: "abc", load: "0.1", versions: map[string]string{"kube-proxy": "Kubernetes v1.37.2", "nftproxy": "Kubernetes v1.37.2+nftproxy-abc"}, results: map[size][]result{}}
	r.add(small, result{name: "kube-proxy", cold: span{took: 2 * time.Second, sync: time.Second}, change: span{took: time.Second, sync: 500 * time.Millisecond}, restart: none, flush: none, table: none, peak: 200 << 20})
	r.add(small, result{name: "nftproxy", cold: span{took: time.Second, sync: 50 * time.Millisecond}, change: span{took: 2 * time.Millisecond, sync: time.Millisecond}, restart: none, flush: none, table: none, peak: 50 << 20})
	r.add(large, result{name: "kube-proxy", cold: span{took: 10 * time.Minute, over: true}, change: none, restart: none, flush: none, table: none, peak: 900 << 20})
	r.add(large, result{name: "nftproxy", cold: span{took: 2 * time.Second, sync: time.Second}, change: span{took: 2 * time.Millisecond, sync: time.Millisecond}, restart: none, flush: none, table: none, peak: 100 << 20})
	return r
}

func TestReport(t *testing.T) {
	t.Run("becomes part of a page", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "page.md")
		if err := os.WriteFile(page, []byte("before\n"+beginMark+"old\n"+endMark+"after\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := measured().writeInto(page); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(text); !strings.HasPrefix(got, "before\n"+beginMark) || !strings.HasSuffix(got, endMark+"after\n") || strings.Contains(got, "old") {
			t.Errorf("the page is\n%s", got)
		}
		for _, want := range []string{
			"kube-proxy is `Kubernetes v1.37.2`",
			"| start, no tables | 2.00 s (1.00 s; 0.00 s) | 1.00 s (50.0 ms; 0.00 s) | 2.0 |",
			"| start, no tables | longer than 10m0s | 2.00 s (1.00 s; 0.00 s) | > 300.0 |",
			"| one more Service, median | – |",
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the page lacks %q:\n%s", want, text)
			}
		}
		if strings.Contains(string(text), "flush") {
			t.Errorf("the page has a row that nobody measured:\n%s", text)
		}
	})
	t.Run("refuses a page without markers", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "page.md")
		if err := os.WriteFile(page, []byte("no markers\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := measured().writeInto(page); err == nil {
			t.Error("it was written")
		}
	})
	t.Run("has the figures of the chart", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "figures.json")
		if err := measured().figures().Write(path); err != nil {
			t.Fatal(err)
		}
		run, err := figures.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		want := figures.Point{Contender: "kube-proxy", Services: 44000, Endpoints: 2, FirstSync: figures.Limited{Time: 10 * time.Minute, Over: true}, Peak: 900 << 20}
		if diff := cmp.Diff(want, run.Points[2]); diff != "" {
			t.Errorf("figures (-want +got):\n%s", diff)
		}
	})
}
