package compiler

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// flowNode is a node's compiler, with a UDP Service whose endpoints are 10.244.N.5:53 on node N.
type flowNode struct {
	*testing.T
	*Compiler
	number byte
	// nowhere and here have endpoints of which it is not known on which node they are, and that are on this one.
	nowhere, here byte
}

func newFlowNode(t *testing.T, number byte) *flowNode {
	t.Helper()
	config := Default()
	config.DirectReturn = true
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return &flowNode{T: t, Compiler: c, number: number}
}

func flowEndpoint(node byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, node, 5}), 53)
}

// tell tells the node of the ready and the terminating endpoints.
func (n *flowNode) tell(ready, terminating []byte) {
	p := &model.ServicePort{
		ID:   model.PortID{Namespace: "shop", Service: "dns", Protocol: model.UDP, Family: model.IPv4},
		Port: 53, ExternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, 1})}, DirectReturn: true,
	}
	for _, on := range ready {
		local := on == n.number || on == n.here
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: flowEndpoint(on), Local: local, Remote: !local && on != n.nowhere})
		p.Serving = append(p.Serving, flowEndpoint(on))
	}
	for _, on := range terminating {
		p.Serving = append(p.Serving, flowEndpoint(on))
	}
	n.Apply(&model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
}

// elements counts the elements of a map by the node to which they lead.
func (n *flowNode) elements(name string) map[byte]int {
	count := map[byte]int{}
	for _, e := range n.Tables()[0].Set(name).Elements() {
		count[e.Value[2]]++
	}
	return count
}

func (n *flowNode) moved() (slots int) {
	for _, step := range n.MovedSlots().Steps {
		slots += len(step.Elements)
	}
	return slots
}

// expect compares the endpoints that are asked, and the number of slots whose flows are all asked about.
func (n *flowNode) expect(when string, previous map[byte]int, moved int) {
	n.Helper()
	if diff := cmp.Diff(previous, n.elements("direct-previous")); diff != "" {
		n.Errorf("%s: direct-previous (-want +got):\n%s", when, diff)
	}
	if got := n.moved(); got != moved {
		n.Errorf("%s: the kernel asks about all flows of %d slots, want %d", when, got, moved)
	}
}

// The endpoint that had a slot before it came to a node is asked about the slot's flows.
func TestPreviousEndpoints(t *testing.T) {
	// owned returns the number of slots that the node's endpoint has among these endpoints.
	owned := func(node byte, endpoints ...byte) int {
		n := newFlowNode(t, node)
		n.tell(endpoints, nil)
		return n.elements("direct-slots")[node]
	}
	two, three := owned(2, 1, 2), owned(3, 1, 2, 3)
	none := map[byte]int{}
	t.Run("when an endpoint comes, terminates and goes", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.tell([]byte{1}, nil)
		n.expect("before it comes", none, 0)
		n.tell([]byte{1, 2}, nil)
		n.expect("before the commit", map[byte]int{1: two}, two)
		n.Committed()
		n.tell([]byte{1, 2}, nil)
		n.expect("the same list again", map[byte]int{1: two}, 0)
		n.Invalidate()
		n.expect("the kernel's tables are lost", map[byte]int{1: two}, two)
		n.Committed()
		n.tell([]byte{2}, []byte{1})
		n.expect("the other one terminates", map[byte]int{1: directSlots}, directSlots-two)
		n.tell([]byte{2}, nil)
		n.expect("the other one is gone", none, 0)
	})
	t.Run("a node that loses a slot keeps whom it asked", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.tell([]byte{1}, nil)
		n.tell([]byte{1, 2}, nil)
		n.Committed()
		n.tell([]byte{1, 2, 3}, nil)
		n.expect("another one comes", map[byte]int{1: two}, 0)
		last := newFlowNode(t, 3)
		last.tell([]byte{1}, nil)
		last.tell([]byte{1, 2}, nil)
		last.tell([]byte{1, 2, 3}, nil)
		asked := last.elements("direct-previous")
		if asked[1]+asked[2] != three || asked[1] == 0 || asked[2] == 0 {
			t.Errorf("the new one asks %v, want both, %d in all", asked, three)
		}
	})
	t.Run("a slot whose endpoint is gone", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.tell([]byte{1, 2, 3}, nil)
		n.Committed()
		n.tell([]byte{1, 2}, nil)
		came := two - owned(2, 1, 2, 3)
		n.expect("asks the one that would have it", map[byte]int{1: came}, came)
	})
	t.Run("a slot that came, and whose previous endpoint goes later", func(t *testing.T) {
		n := newFlowNode(t, 3)
		n.tell([]byte{1, 2}, nil)
		n.tell([]byte{1, 2, 3}, nil)
		n.Committed()
		n.tell([]byte{1, 3}, nil)
		// The slots that were 2's may have been 1's before.
		n.expect("asks the one that would have it", map[byte]int{1: owned(3, 1, 3)}, owned(3, 1, 3)-three)
	})
	t.Run("a slot of an endpoint whose node is not known", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.nowhere = 1
		n.tell([]byte{1}, nil)
		n.tell([]byte{1, 2}, nil)
		n.expect("asks nobody", none, 0)
		n.tell([]byte{1, 2, 3}, nil)
		n.tell([]byte{1, 2}, nil)
		n.tell([]byte{2}, []byte{1})
		n.expect("asks nobody, although it still serves", none, 0)
	})
	t.Run("an address that comes to this node", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.tell([]byte{1}, nil)
		n.tell([]byte{1, 2}, nil)
		n.here = 1
		n.tell([]byte{1, 2}, nil)
		n.expect("is not asked any more", none, 0)
	})
	t.Run("a node that has just come", func(t *testing.T) {
		n := newFlowNode(t, 2)
		n.RestoreSlots(func(nft.Family, *nft.Set) []nft.Element { return nil })
		n.tell([]byte{1, 2}, nil)
		n.expect("asks about all slots", map[byte]int{1: two}, two)
	})
	t.Run("a proxy that starts again", func(t *testing.T) {
		before := newFlowNode(t, 2)
		before.tell([]byte{1}, nil)
		before.tell([]byte{1, 2}, nil)
		before.tell([]byte{1, 2, 3}, nil)
		after := newFlowNode(t, 2)
		after.RestoreSlots(func(family nft.Family, set *nft.Set) []nft.Element {
			return before.Tables()[index(family == nft.FamilyIP6)].Set(set.Name).Elements()
		})
		after.tell([]byte{1, 2, 3}, nil)
		after.expect("goes on", map[byte]int{1: two}, 0)
		if diff := cmp.Diff(printed(before.Tables()), printed(after.Tables())); diff != "" {
			t.Errorf("the tables are others than before:\n%.2000s", diff)
		}
	})
}
