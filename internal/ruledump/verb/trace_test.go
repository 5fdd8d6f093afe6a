package verb

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
)

// handles is a listener that has the handles of the rules of each packet.
type handles [][]uint64

func (h *handles) packet(_ context.Context, p *underway) error {
	var list []uint64
	for _, s := range p.steps {
		list = append(list, s.Handle)
	}
	*h = append(*h, list)
	return nil
}

func (h *handles) lost() error                { return nil }
func (h *handles) tick(context.Context) error { return nil }

// Behind prerouting at the port of a bridge a packet has another number, which a packet before it had, too.
func TestTraceNumbers(t *testing.T) {
	const from = "10.244.1.5:40000"
	mark := func(id uint32) nft.Trace {
		return nft.Trace{ID: id, Table: "marks", Chain: "prerouting", Handle: 1, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6, In: 7}
	}
	at := func(id uint32, chain string) nft.Trace {
		return nft.Trace{ID: id, Table: "marks", Chain: chain, Verdict: nft.Accept}
	}
	forward := func(id uint32) nft.Trace {
		step := mark(id)
		step.Chain, step.Handle, step.Destination = chainForward, 0, netip.MustParseAddrPort("10.244.1.6:8080")
		return step
	}
	rule := func(id uint32, handle uint64) nft.Trace {
		return nft.Trace{ID: id, Table: "proxy", Chain: "any", Handle: handle, Verdict: nft.Accept}
	}
	for _, tt := range []struct {
		name  string
		steps []nft.Trace
		// want has the handles of the rules of each packet, oldest first.
		want [][]uint64
	}{
		{"one number", []nft.Trace{mark(1), rule(1, 10), at(1, chainPrerouted), forward(1), rule(1, 11), at(1, chainSent)}, [][]uint64{{10, 11}}},
		{"another number behind prerouting", []nft.Trace{mark(1), rule(1, 10), at(1, chainPrerouted), forward(2), rule(2, 11)}, [][]uint64{{10, 11}}},
		{"the same two numbers again", []nft.Trace{
			mark(1), rule(1, 10), at(1, chainPrerouted), forward(2), rule(2, 11), at(2, chainSent),
			mark(1), rule(1, 20), at(1, chainPrerouted), forward(2), rule(2, 21), at(2, chainSent),
		}, [][]uint64{{10, 11}, {20, 21}}},
		{"the one before was dropped by the kernel", []nft.Trace{
			mark(1), rule(1, 10), at(1, chainPrerouted), mark(3), rule(3, 20), at(3, chainPrerouted), forward(2), rule(2, 21),
		}, [][]uint64{{10}, {20, 21}}},
		{"another is still in prerouting", []nft.Trace{
			mark(1), rule(1, 10), at(1, chainPrerouted), mark(3), forward(2), rule(2, 11), rule(3, 20), at(3, chainPrerouted), forward(4), rule(4, 21),
		}, [][]uint64{{10, 11}, {20, 21}}},
		{"of somebody else", []nft.Trace{forward(2), rule(2, 11)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got [][]uint64
			x := &follower{table: "marks", to: (*handles)(&got)}
			for _, step := range tt.steps {
				if err := x.take(t.Context(), step); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.finish(t.Context(), func(*underway) bool { return true }); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
