package deploy

import (
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config"
)

// unsetPodsRange stands in the overlay standalone where an operator has to set the pods' range.
const unsetPodsRange = "PODS-RANGE"

func TestStandaloneOverlay(t *testing.T) {
	text := configMapOf(t, kustomize(t, "kustomize/overlays/standalone")).Data["config.conf"]
	t.Run("the program refuses to run it without the pods' range", func(t *testing.T) {
		const want = `clusterCIDR: Invalid value: "` + unsetPodsRange + `"`
		if _, err := config.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	})
	t.Run("nothing else is missing", func(t *testing.T) {
		file, err := config.Parse([]byte(strings.ReplaceAll(text, unsetPodsRange, podsRange)))
		if err != nil {
			t.Fatal(err)
		}
		if len(file.Warnings) > 0 {
			t.Errorf("warnings %q", file.Warnings)
		}
	})
}
