// Package python tests the proxy in Python.
package python

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/proxytest"
)

func TestMain(m *testing.M) { lab.Main(m) }

// The command is that of proxy.py.
func TestConformance(t *testing.T) {
	report := proxytest.ForTest(t, `sh -c '"$0" node-local-watch --node-local-source "$1" --hostname-override "$2" -o jsonl | python3 proxy.py' `+
		lab.Binary(t, "kube-proxy")+" {node-local} {node}", "python")
	if len(report.Results) != 16 {
		t.Errorf("%d cases ran", len(report.Results))
	}
}
