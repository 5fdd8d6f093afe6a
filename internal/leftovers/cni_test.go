package leftovers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// useCNI has the configurations of network plugins in a directory of the test.
func useCNI(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	t.Cleanup(func() { cniDir = CNIDir })
	dir = t.TempDir()
	cniDir = dir
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMarkChainUsers(t *testing.T) {
	const uses = `{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}`
	dir := useCNI(t, map[string]string{
		"10-list.conflist":     `{"cniVersion":"1.0.0","plugins":[{"type":"bridge"},` + uses + `]}`,
		"20-one.conf":          uses,
		"30-own.conflist":      `{"plugins":[{"type":"portmap","capabilities":{"portMappings":true}}]}`,
		"40-other.conflist":    `{"plugins":[{"type":"portmap","externalSetMarkChain":"MY-MARK"}]}`,
		"50-broken.conflist":   `{"plugins":[`,
		"60-large.conf":        `{"type":"` + strings.Repeat("x", maxCNIFile) + `",` + uses[1:],
		"calico-kubeconfig":    uses,
		"70-list.conflist.bak": uses,
	})
	want := []string{filepath.Join(dir, "10-list.conflist"), filepath.Join(dir, "20-one.conf")}
	if diff := cmp.Diff(want, MarkChainUsers(dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if files := MarkChainUsers(filepath.Join(dir, "missing")); files != nil {
		t.Errorf("without a directory: %v", files)
	}
}
