package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteOverlay(t *testing.T) {
	t.Chdir("../..")
	c := &cluster{dir: t.TempDir()}
	overlay, err := c.writeOverlay()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"config.conf":        "clusterCIDR: " + podRanges,
		"kubeconfig.conf":    "server: " + c.server(),
		"kustomization.yaml": "nodeSelector/e2e.nftproxy.io~1daemonset",
	} {
		text, err := os.ReadFile(filepath.Join(overlay, file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q:\n%s", file, want, text)
		}
	}
	t.Run("a place that is not there any more is an error", func(t *testing.T) {
		if err := (edit{"config.conf", "PODS-RANGE", "x"}).in(overlay); err == nil || !strings.Contains(err.Error(), "lacks") {
			t.Errorf("got %v", err)
		}
	})
}
