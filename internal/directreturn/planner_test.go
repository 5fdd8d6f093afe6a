package directreturn

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// oneService is a planner with one address of one Service port.
type oneService struct {
	*testing.T
	*Planner
	key  []byte
	port *model.ServicePort
}

func newOneService(t *testing.T, protocol model.Protocol) *oneService {
	addr := netip.MustParseAddr("203.0.113.1")
	key := nft.AddrData(addr) + nft.ProtoData(uint8(protocol)) + nft.PortData(80)
	return &oneService{T: t, Planner: New(nft.NewDraft(nft.FamilyIP, "kube-proxy", ""), true, false), key: []byte(key), port: &model.ServicePort{
		ID:   model.PortID{Namespace: "shop", Service: "web", Protocol: protocol, Family: model.IPv4},
		Port: 80, LoadBalancerIPs: []netip.Addr{addr}, DirectReturn: true,
		Cluster: []model.Endpoint{
			{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true},
			{AddrPort: netip.MustParseAddrPort("10.244.2.5:8080"), Remote: true},
		},
	}}
}

// change changes the Service port; nil deletes it.
func (s *oneService) change(edit func(*model.ServicePort)) {
	next := *s.port
	s.port = &next
	if edit == nil {
		s.Ask(s.port.ID, nil)
		s.Serve(s.key, nil)
	} else {
		edit(s.port)
		s.Ask(s.port.ID, s.port)
		s.Serve(s.key, s.port)
	}
	s.Settle()
}

// expect compares the state of the address: direct, leaving, or none of both.
func (s *oneService) expect(when string, direct, leaving bool) {
	s.Helper()
	if got := []bool{s.sets.addresses.Len() > 0, s.sets.leaving.Len() > 0}; !slices.Equal(got, []bool{direct, leaving}) {
		s.Errorf("%s: direct return and leaving it are %v, want %v, %v", when, got, direct, leaving)
	}
	if got, want := s.sets.own.Len() > 0, direct; got != want {
		s.Errorf("%s: slots of this node are there: %v, want %v", when, got, want)
	}
	if got, want := s.sets.hops.Len() > 0, direct || leaving; got != want {
		s.Errorf("%s: slots of other nodes are there: %v, want %v", when, got, want)
	}
	if got, want := len(s.ForwardsTo()) > 0, direct || leaving; got != want {
		s.Errorf("%s: packets are forwarded to somebody: %v, want %v", when, got, want)
	}
	if got, want := len(s.Chains(nil, nil)) > 0, direct || leaving; got != want {
		s.Errorf("%s: chains are there: %v, want %v", when, got, want)
	}
}

// hasDup reports whether a chain forwards packets.
func (s *oneService) hasDup() bool {
	for _, c := range s.Chains(nil, nil) {
		for _, r := range c.Rules {
			for _, statement := range r.Statements {
				if _, is := statement.(nft.Dup); is && c.Name != chainAsk {
					return true
				}
			}
		}
	}
	return false
}

func TestLimit(t *testing.T) {
	s := newOneService(t, model.TCP)
	s.change(func(*model.ServicePort) {})
	for _, mute := range []bool{false, true, false} {
		if changed := s.hasDup() == mute; changed {
			s.Limit(mute, nil)
			if !s.Settle() {
				t.Error("the chains change, and Settle does not say so")
			}
		}
		if s.hasDup() == mute {
			t.Errorf("packets are forwarded: %v, and a node that forwards nothing: %v", s.hasDup(), mute)
		}
		if mute {
			s.change(func(p *model.ServicePort) { p.DirectReturn = false })
			if s.expect("muted", false, true); s.hasDup() {
				t.Error("packets of a Service that leaves are forwarded by a node that forwards nothing")
			}
			s.change(func(p *model.ServicePort) { p.DirectReturn = true })
		}
	}
}

func TestLeaving(t *testing.T) {
	clock := time.Now()
	now = func() time.Time { return clock }
	defer func() { now = time.Now }()
	unchanged := func(*model.ServicePort) {}
	for name, leave := range map[string]func(*model.ServicePort){
		"the annotation goes":             func(p *model.ServicePort) { p.DirectReturn = false },
		"the policy becomes Local":        func(p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal },
		"the endpoints become too many":   func(p *model.ServicePort) { p.Cluster = make([]model.Endpoint, maxEndpoints+1) },
		"all endpoints are gone for once": func(p *model.ServicePort) { p.Cluster = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newOneService(t, model.TCP)
			before := *s.port
			s.change(unchanged)
			s.expect("at first", true, false)
			s.change(leave)
			s.expect("then", false, true)
			clock = clock.Add(LeaveTime - time.Second)
			s.Settle()
			s.expect("nearly at the end", false, true)
			clock = clock.Add(time.Second)
			s.Settle()
			s.expect("at the end", false, false)
			s.change(func(p *model.ServicePort) { *p = before })
			s.expect("again", true, false)
			s.change(leave)
			s.expect("once more", false, true)
			s.change(func(p *model.ServicePort) { *p = before })
			s.expect("and back before the end", true, false)
		})
	}
	t.Run("an older Service port takes the grant", func(t *testing.T) {
		s := newOneService(t, model.TCP)
		s.MaxAddresses = 1
		s.change(func(p *model.ServicePort) { p.Creation = &model.Creation{Time: clock} })
		older := *s.port
		older.ID.Namespace, older.Creation = "zzz", &model.Creation{Time: clock.Add(-time.Hour)}
		if news, all := s.Without(); len(news) > 0 || all != 0 {
			t.Errorf("at first %v of %d have no grant", news, all)
		}
		s.Ask(older.ID, &older)
		s.Settle()
		s.expect("then", false, true)
		if news, all := s.Without(); !slices.Equal(news, []model.PortID{s.port.ID}) || all != 1 {
			t.Errorf("%v of %d are told that they have lost their grant, want %v", news, all, s.port.ID)
		}
	})
	t.Run("an earlier process served it, with the gate on", func(t *testing.T) {
		old := newOneService(t, model.TCP)
		old.change(unchanged)
		s := newOneService(t, model.TCP)
		s.enabled = false
		s.Restore(func(set *nft.Set) []nft.Element { return old.draft.Table().Set(set.Name).Elements() })
		s.change(unchanged)
		s.expect("now", false, true)
		if got, want := s.sets.hops.Len(), old.sets.hops.Len(); got != want {
			t.Errorf("%d slots of other nodes, want %d", got, want)
		}
		clock = clock.Add(LeaveTime)
		s.Settle()
		s.expect("at the end", false, false)
	})
	t.Run("the Service is gone", func(t *testing.T) {
		s := newOneService(t, model.TCP)
		s.change(unchanged)
		s.change(nil)
		s.expect("then", false, false)
	})
	t.Run("datagrams do not tell", func(t *testing.T) {
		s := newOneService(t, model.UDP)
		s.change(unchanged)
		s.change(func(p *model.ServicePort) { p.DirectReturn = false })
		s.expect("then", false, false)
	})
}
