package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryFieldIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	// What the page says of several fields at once.
	together := []string{"apiVersion", "kind", "logging.", "iptables.syncPeriod", "iptables.minSyncPeriod", "ipvs.syncPeriod", "ipvs.minSyncPeriod", "iptables.masqueradeAll"}
	for _, file := range []string{"every-field-set/v1alpha1.yaml", "v1alpha2-every-field-set/v1alpha2.yaml", "every-field-set/input.yaml", "v1alpha2-every-field-set/input.yaml"} {
		for _, path := range paths("", readTree(t, filepath.Join("testdata", "corpus", filepath.FromSlash(file)))) {
			documented := strings.Contains(string(page), "| `"+path+"` |")
			for _, prefix := range together {
				documented = documented || strings.HasPrefix(path, prefix)
			}
			if !documented && !strings.HasPrefix(path, "featureGates.") {
				t.Errorf("docs/configuration.md says nothing of %s", path)
			}
		}
	}
}

// paths returns the paths of everything in a document that is not an object.
func paths(prefix string, tree any) (out []string) {
	object, ok := tree.(map[string]any)
	if !ok {
		return []string{prefix}
	}
	for name, value := range object {
		out = append(out, paths(strings.TrimPrefix(prefix+"."+name, "."), value)...)
	}
	return out
}
