package directreturn

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// asks makes a Service port ask for as many addresses.
func (g *grants) asks(namespace string, addresses int, created int64, uid string) model.PortID {
	id := model.PortID{Namespace: namespace, Service: fmt.Sprintf("%s-%d", uid, created), Protocol: model.TCP, Family: model.IPv4}
	g.ask(id, &model.ServicePort{
		ID: id, DirectReturn: true, ExternalIPs: make([]netip.Addr, addresses), Creation: &model.Creation{Time: time.Unix(created, 0), UID: uid},
	})
	return id
}

func (g *grants) expect(t *testing.T, when string, granted ...model.PortID) {
	t.Helper()
	g.decide(maxAddresses)
	has := 0
	for _, r := range g.requests {
		if r.granted {
			has++
		}
	}
	for _, id := range granted {
		if r := g.requests[id]; r == nil || !r.granted {
			t.Errorf("%s: %v has no direct return", when, id)
		}
	}
	if has != len(granted) {
		t.Errorf("%s: %d have direct return, want %d", when, has, len(granted))
	}
}

func TestGrants(t *testing.T) {
	share := shareOf(maxAddresses)
	t.Run("go to the oldest, then by UID", func(t *testing.T) {
		g := grants{requests: map[model.PortID]*request{}}
		shop, blog := g.asks("shop", share, 2, "b"), g.asks("blog", share, 3, "c")
		g.expect(t, "at first", shop, blog)
		g.asks("aaa", share, 4, "a")
		g.expect(t, "a new one whose name is first takes from none", shop, blog)
		early := g.asks("early", share, 2, "a")
		g.expect(t, "of the same age, the lower UID", early, shop)
	})
	t.Run("leave others what is beyond a namespace's share", func(t *testing.T) {
		g := grants{requests: map[model.PortID]*request{}}
		var greedy []model.PortID
		for i := range share {
			greedy = append(greedy, g.asks("greedy", 1, int64(i), "a"))
		}
		g.asks("greedy", 1, 1000, "a")
		late := g.asks("late", share, 2000, "a")
		g.expect(t, "then", append(greedy, late)...)
	})
	t.Run("need no creation", func(t *testing.T) {
		g := grants{requests: map[model.PortID]*request{}}
		id := model.PortID{Namespace: "shop", Service: "web"}
		g.ask(id, &model.ServicePort{ID: id, DirectReturn: true, ExternalIPs: make([]netip.Addr, 1)})
		g.expect(t, "then", id)
	})
}
