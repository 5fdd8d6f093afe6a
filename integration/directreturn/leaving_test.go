package directreturn

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// Connections outlive the loss of direct return for directreturn.LeaveTime, and new ones are as without it.
func TestLeaving(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		edit func(*wired, *model.ServicePort)
		// restart restarts the proxies, with the gate off.
		restart bool
		// masquerades says that new connections come about, and that pods see a node.
		masquerades bool
	}{
		"the annotation is removed": {masquerades: true, edit: func(_ *wired, p *model.ServicePort) { p.DirectReturn = false }},
		"the gate is switched off":  {masquerades: true, restart: true},
		"the policy becomes Local":  {edit: func(_ *wired, p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal }},
		"more endpoints than the limit": {edit: func(_ *wired, p *model.ServicePort) {
			for n := range 1000 {
				pod := netip.AddrPortFrom(addr(p.ID.Family, "10.244.100.0", "fd00:244:100::"), 8080)
				for range n {
					pod = netip.AddrPortFrom(pod.Addr().Next(), 8080)
				}
				p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: pod, Remote: true})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWired(t)
			w.serve(t, everyNode, 2, 3, 4)
			w.spread(t, everyNode...)
			open := w.open(t, direct, "tcp")
			if lost := open.during(func() {
				for _, number := range everyNode {
					if tt.restart {
						must(t, w.backends[number].Close())
						w.off = true
						w.startBackend(t, number)
					}
				}
				if tt.edit != nil {
					w.edit = func(p *model.ServicePort) { tt.edit(w, p) }
				}
				w.serve(t, everyNode, 2, 3, 4)
			}); lost.lost() > 0 {
				t.Errorf("%v, the first one: %s", lost, lost.gone[0].why)
			}
			if lost := open.during(func() { w.spread(t, 2, 3, 4, 5) }); lost.lost() > 0 {
				t.Errorf("and node 1 leaves: %v, the first one: %s", lost, lost.gone[0].why)
			}
			if !tt.masquerades {
				return
			}
			for _, family := range families {
				for client := range 10 {
					if c := w.dialFrom(t, "tcp", family, client); c.source.Addr() == c.from {
						t.Errorf("a pod sees the address of a new client, %s", c.from)
					}
				}
			}
		})
	}
}

// A newer Service takes direct return from none, whatever its name and how many ports it has.
func TestNewcomers(t *testing.T) {
	t.Parallel()
	w := newWired(t)
	w.edit = func(p *model.ServicePort) { p.Creation = &model.Creation{Time: time.Unix(1, 0)} }
	w.serve(t, everyNode, 2, 3, 4)
	w.spread(t, everyNode...)
	open := w.open(t, direct, "tcp", "udp")
	w.more = func(changes *model.Changes) {
		for _, family := range families {
			for port := range 100 {
				id := model.PortID{Namespace: "aaa", Service: "a", Port: fmt.Sprint(port), Protocol: model.TCP, Family: family}
				changes.Ports[id] = &model.ServicePort{
					ID: id, Port: uint16(1000 + port), LoadBalancerIPs: []netip.Addr{direct.addr(family).Next().Next()}, DirectReturn: true,
					Creation: &model.Creation{Time: time.Unix(2, 0)},
					Cluster:  []model.Endpoint{{AddrPort: netip.AddrPortFrom(podAddr(family, 2), 8080), Remote: true}},
				}
			}
		}
	}
	if lost := open.during(func() {
		w.serve(t, everyNode, 2, 3, 4)
		w.spread(t, 2, 3, 4, 5)
	}); lost.lost() > 0 {
		t.Errorf("%v, the first one: %s", lost, lost.gone[0].why)
	}
	if listed := lab.Nft(t, w.nodes[1].Host, "", "list", "set", "ip", "kube-proxy", "direct-ips"); strings.Count(listed, `"aaa/a:`) != 20 {
		t.Errorf("the newer Service has not the share of a namespace:\n%.2000s", listed)
	}
	for _, family := range families {
		if c := w.dialFrom(t, "tcp", family, 1); c.source.Addr() != c.from {
			t.Errorf("a pod sees %s as %s", c.from, c.source)
		}
	}
}
