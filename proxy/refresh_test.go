package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/directreturn/entrance"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// entering is a Backend with direct return and a node whose routes a test decides.
type entering struct {
	*testing.T
	backend *Backend
	// looked has what each look was about, and obstacles what the node was told.
	looked    []string
	obstacles []string
	// obstacle answers each look.
	obstacle func(to []netip.Addr) (string, error)
}

func newEntering(t *testing.T) *entering {
	t.Helper()
	e := &entering{T: t, obstacle: func([]netip.Addr) (string, error) { return "", nil }}
	config := compiler.Default()
	config.DirectReturn = true
	here := entrance.New(func(obstacle string) { e.obstacles = append(e.obstacles, obstacle) })
	here.ObstacleTo = func(to []netip.Addr) (string, error) {
		e.looked = append(e.looked, fmt.Sprint(to))
		return e.obstacle(to)
	}
	here.DevicesInside = func([]netip.Addr) ([]string, error) {
		e.looked = append(e.looked, "inside")
		return []string{"docker0"}, nil
	}
	b, err := NewBackend(namespaceConn(t), config, Hooks{
		OnApplied: func(ctx context.Context, c *compiler.Compiler, changes *model.Changes) {
			here.Look(ctx, c, changes)
		},
		BeforeRefresh: here.Survey,
		OnRefresh: func(ctx context.Context, c *compiler.Compiler) {
			here.Surveyed(ctx, c)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	e.backend = b
	return e
}

// sync tells of a Service with endpoints on other nodes.
func (e *entering) sync(endpoints ...string) {
	e.Helper()
	p := &model.ServicePort{
		ID:   model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4},
		Port: 80, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, DirectReturn: true,
	}
	for _, text := range endpoints {
		p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.MustParseAddrPort(text + ":8080"), Remote: true})
	}
	changes := &model.Changes{Full: true, Node: &model.Node{Name: "node-1"}, Ports: map[model.PortID]*model.ServicePort{p.ID: p}, ServiceCIDRsChanged: true}
	if err := e.backend.Sync(e.Context(), changes); err != nil {
		e.Fatal(err)
	}
}

func (e *entering) refresh() {
	e.Helper()
	if err := e.backend.refreshOnce(e.Context()); err != nil {
		e.Fatal(err)
	}
}

// expect compares the looks since the last call, and whether packets are forwarded.
func (e *entering) expect(when string, forwards bool, looked ...string) {
	e.Helper()
	if diff := cmp.Diff(looked, e.looked); diff != "" {
		e.Errorf("%s: looks (-want +got):\n%s", when, diff)
	}
	e.looked = nil
	isDup := func(s nft.Statement) bool { _, is := s.(nft.Dup); return is }
	has := slices.ContainsFunc(e.backend.Tables()[0].Chain("direct-forward").Rules, func(r nft.Rule) bool { return slices.ContainsFunc(r.Statements, isDup) })
	if has != forwards {
		e.Errorf("%s: packets are forwarded: %v, want %v", when, has, forwards)
	}
	if err := kernelDiffers(e.Context(), e.backend.conn, e.backend); err != nil {
		e.Error(err)
	}
}

const firstEndpoint, secondEndpoint = "10.244.2.5", "10.244.3.5"

func TestEntrance(t *testing.T) {
	blocked := func(address string) func([]netip.Addr) (string, error) {
		return func(to []netip.Addr) (string, error) {
			if slices.Contains(to, netip.MustParseAddr(address)) {
				return "a tunnel to " + address, nil
			}
			return "", nil
		}
	}
	t.Run("a Sync looks at new endpoints alone, a refresh at all", func(t *testing.T) {
		e := newEntering(t)
		e.sync(firstEndpoint)
		e.expect("the first Sync", true, "[10.244.2.5]", "inside")
		e.sync(firstEndpoint)
		e.expect("the same again", true)
		e.sync(firstEndpoint, secondEndpoint)
		e.expect("one more", true, "[10.244.3.5]")
		e.sync(secondEndpoint)
		e.expect("one less", true)
		e.refresh()
		e.expect("a refresh", true, "[10.244.3.5]", "inside")
	})
	t.Run("a Sync does not wait for a refresh, whose look is then of no use", func(t *testing.T) {
		e := newEntering(t)
		e.sync(firstEndpoint)
		e.looked = nil
		success := e.obstacle
		e.obstacle = func([]netip.Addr) (string, error) {
			e.obstacle = success
			e.sync(firstEndpoint, secondEndpoint)
			return "a tunnel that is gone", nil
		}
		e.refresh()
		e.expect("a Sync in the middle of a refresh", true, "[10.244.2.5]", "[10.244.3.5]", "inside")
		e.refresh()
		e.expect("the next refresh", true, "[10.244.2.5 10.244.3.5]", "inside")
	})
	t.Run("nothing is forwarded while one endpoint has an obstacle", func(t *testing.T) {
		e := newEntering(t)
		e.obstacle = blocked(secondEndpoint)
		e.sync(firstEndpoint)
		e.expect("the first Sync", true, "[10.244.2.5]", "inside")
		e.sync(firstEndpoint, secondEndpoint)
		e.expect("an endpoint behind a tunnel", false, "[10.244.3.5]")
		e.sync(firstEndpoint)
		e.expect("it is gone", false)
		e.refresh()
		e.expect("and a refresh finds it", true, "[10.244.2.5]", "inside")
		if diff := cmp.Diff([]string{"a tunnel to " + secondEndpoint, ""}, e.obstacles); diff != "" {
			t.Errorf("the node is told (-want +got):\n%s", diff)
		}
	})
	t.Run("a first failure is an obstacle, a later one changes nothing", func(t *testing.T) {
		e := newEntering(t)
		failure := func([]netip.Addr) (string, error) { return "", errors.New("no memory") }
		success := e.obstacle
		e.obstacle = failure
		e.sync(firstEndpoint)
		e.expect("a failure", false, "[10.244.2.5]")
		e.obstacle = success
		e.refresh()
		e.expect("a success", true, "[10.244.2.5]", "inside")
		e.obstacle = failure
		e.refresh()
		e.expect("a failure again", true, "[10.244.2.5]")
	})
}
