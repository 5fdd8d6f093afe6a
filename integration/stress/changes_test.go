package stress

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

var (
	seed    = flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the random changes")
	changes = flag.Int("changes", 1000, "how many times something changes")
)

// betweenChanges is the number of new connections between two changes.
const betweenChanges = 16

func TestChanges(t *testing.T) {
	t.Run("a thousand break no connection", testThousandChangesBreakNoConnection)
}

// Eight clients use lasting connections to a Service and dial it all the time, while a
// thousand things change around them. Nothing must break, no new connection may fail, and
// none may reach an endpoint that went before it began.
func testThousandChangesBreakNoConnection(t *testing.T) {
	t.Logf("seed %d", *seed)
	w := newFixture(t, rand.New(rand.NewPCG(*seed, 0)))
	w.populate(t)
	w.syncChanges(t)
	probe := newProbe(t, w.Node, untranslatedSYNs)
	tr := w.startTraffic(t)
	n := 0
	for broken := false; n < *changes && !broken; n++ {
		change := w.choose()
		change.do(t)
		if err := tr.await(betweenChanges); err != nil {
			t.Errorf("after change %d (%s): %v", n, change.name, err)
			broken = true
		}
	}
	tr.end()
	t.Logf("%d changes; %d new connections, the slowest after %v; %d lines over lasting ones", n, tr.short, tr.slowest, tr.echoes)
	for _, err := range tr.failures {
		t.Error(err)
	}
	if missed := probe.read(t)["missed"]; missed > 0 {
		t.Errorf("%d packets were sent to no endpoint at first", missed)
	}
}

// untranslatedSYNs counts first packets to Services that come past the rules as they are.
const untranslatedSYNs = `
table inet probe {
	counter missed { }
	chain input {
		type filter hook input priority -10
		tcp flags & (syn | ack) == syn tcp dport { 80, 30000-30255 } counter name missed
	}
	chain forward {
		type filter hook forward priority -10
		tcp flags & (syn | ack) == syn tcp dport { 80, 30000-30255 } counter name missed
	}
	chain output {
		type filter hook output priority -10
		tcp flags & (syn | ack) == syn tcp dport { 80, 30000-30255 } counter name missed
	}
}
`

// probe is a table of the test's own next to the proxy's. Its counters tell translated
// packets from others, right before the proxy's rules would refuse the others.
type probe struct {
	node *lab.Host
	// dropped is the number of packets that the kernel had dropped for lack of room at the last reset.
	dropped uint64
}

func newProbe(t *testing.T, node *lab.Host, table string) *probe {
	t.Helper()
	lab.Nft(t, node, table, "-f", "-")
	return &probe{node: node}
}

func (p *probe) reset(t *testing.T) {
	t.Helper()
	lab.Nft(t, p.node, "", "reset", "counters", "table", "inet", "probe")
	p.dropped = lab.DroppedByQueues()
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
			if dropped := lab.DroppedByQueues() - p.dropped; uint64(translated+missed)+dropped < uint64(sent) {
				t.Fatalf("of %d packets only %d arrived, and the kernel had no room for %d", sent, translated+missed, dropped)
			}
			return translated, missed
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
