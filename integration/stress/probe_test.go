package stress

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// probe is a table of the test's own next to the proxy's, with counters of what becomes of
// packets right before the proxy's rules would refuse those that were not translated.
type probe struct{ node *lab.Host }

func newProbe(t *testing.T, node *lab.Host, table string) *probe {
	t.Helper()
	lab.Nft(t, node, table, "-f", "-")
	return &probe{node}
}

func (p *probe) reset(t *testing.T) {
	t.Helper()
	lab.Nft(t, p.node, "", "reset", "counters", "table", "inet", "probe")
}

// await returns the counters "translated" and "missed" when all packets were counted.
func (p *probe) await(t *testing.T, sent int) (translated, missed int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		counts := p.read(t)
		translated, missed = counts["translated"], counts["missed"]
		if translated+missed == sent {
			return translated, missed
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d packets only %d arrived", sent, translated+missed)
		}
	}
}

func (p *probe) read(t *testing.T) map[string]int {
	t.Helper()
	var listing struct {
		Nftables []struct {
			Counter struct {
				Name    string
				Packets int
			}
		}
	}
	out := lab.Nft(t, p.node, "", "--json", "list", "counters", "table", "inet", "probe")
	if err := json.Unmarshal([]byte(out), &listing); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, object := range listing.Nftables {
		counts[object.Counter.Name] = object.Counter.Packets
	}
	return counts
}
