package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
)

func TestFields(t *testing.T) {
	t.Run("are documented", testFieldsAreDocumented)
}

func testFieldsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	// What the page says of several fields at once.
	together := []string{"apiVersion", "kind", "logging.", "iptables.syncPeriod", "iptables.minSyncPeriod", "ipvs.syncPeriod", "ipvs.minSyncPeriod", "iptables.masqueradeAll"}
	v1alpha1, v1alpha2 := corpus.Get(t, "every-field-set"), corpus.Get(t, "v1alpha2-every-field-set")
	for _, document := range []string{v1alpha1.File("v1alpha1.yaml"), v1alpha2.File("v1alpha2.yaml"), v1alpha1.File(corpus.Input), v1alpha2.File(corpus.Input)} {
		for _, path := range paths("", readTree(t, document)) {
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
