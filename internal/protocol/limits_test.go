package protocol_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// TestBatchLimits sends parts of a batch that never ends.
func TestBatchLimits(t *testing.T) {
	numbered := func(i int) *nodelocalv1.PortID {
		id := validID()
		id.Service = fmt.Sprint("web-", i)
		return id
	}
	for _, tc := range []struct {
		name   string
		limits protocol.Limits
		part   func(i int) *nodelocalv1.Update
		// want is the number of the part that is refused.
		want  int
		field string
	}{
		{"ports that are set", protocol.Limits{Ports: 10}, func(i int) *nodelocalv1.Update {
			return &nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{validPort(func(p *nodelocalv1.ServicePort) { p.Id = numbered(i) })}}
		}, 11, "Limits.Ports is 10"},
		{"ports that are deleted", protocol.Limits{Ports: 10}, func(i int) *nodelocalv1.Update {
			return &nodelocalv1.Update{Delete: []*nodelocalv1.PortID{numbered(i)}}
		}, 11, "Limits.Ports is 10"},
		{"continuations with endpoints", protocol.Limits{Addresses: 40}, func(i int) *nodelocalv1.Update {
			return &nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{validPort(func(p *nodelocalv1.ServicePort) {
				e, a := []*nodelocalv1.Endpoint{{Address: fmt.Sprint("10.1.0.", i), Port: 80}}, []*nodelocalv1.AddressPort{{Address: "10.1.0.1", Port: 80}}
				p.Cluster, p.Local, p.Serving, p.NotServing = e, e, a, a
				p.Continued = i > 0
			})}}
		}, 11, "Limits.Addresses is 40"},
		{"addresses that clients dial", protocol.Limits{Addresses: 30}, func(int) *nodelocalv1.Update {
			return &nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{validPort(func(p *nodelocalv1.ServicePort) {
				p.ExternalIps, p.LoadBalancerIps, p.LoadBalancerSourceRanges = []string{"10.1.0.1"}, []string{"10.1.0.1"}, []string{"10.1.0.0/24"}
			})}}
		}, 11, "Limits.Addresses is 30"},
		{"long names", protocol.Limits{Bytes: 10_000}, func(int) *nodelocalv1.Update {
			return &nodelocalv1.Update{Node: &nodelocalv1.Node{Name: strings.Repeat("n", 1000)}}
		}, 10, "Limits.Bytes is 10000"},
		{"parts without anything in them", protocol.Limits{Bytes: 50}, func(int) *nodelocalv1.Update { return &nodelocalv1.Update{} }, 11, "Limits.Bytes is 50"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			batch := protocol.Batch{Limits: tc.limits}
			for i := range 100 {
				_, _, err := batch.Add(tc.part(i))
				if err == nil {
					continue
				}
				if i+1 != tc.want || !errors.Is(err, protocol.ErrLimit) || !strings.Contains(err.Error(), tc.field) {
					t.Errorf("part %d: error %v, want part %d refused with %q", i+1, err, tc.want, tc.field)
				}
				if changes, _, err := batch.Add(&nodelocalv1.Update{Sync: &nodelocalv1.Sync{}}); err != nil || changes == nil {
					t.Errorf("the next batch: %v", err)
				}
				return
			}
			t.Error("100 parts were taken")
		})
	}
	t.Run("each batch counts for itself", func(t *testing.T) {
		batch := protocol.Batch{Limits: protocol.Limits{Ports: 1}}
		for range 10 {
			if _, _, err := batch.Add(set(validPort())[0]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestBatchContinuations(t *testing.T) {
	const parts = 50_000
	var batch protocol.Batch
	add := func(continued bool, address string) {
		t.Helper()
		p := &nodelocalv1.ServicePort{Id: validID(), Continued: true}
		if !continued {
			p = validPort()
		}
		p.Cluster = []*nodelocalv1.Endpoint{{Address: address, Port: 80}}
		p.Serving = []*nodelocalv1.AddressPort{{Address: address, Port: 80}}
		p.NotServing = p.Serving
		if _, _, err := batch.Add(&nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{p}}); err != nil {
			t.Fatal(err)
		}
	}
	// Backwards, each twice: what comes out is sorted and has each once. Sorting at each part would take minutes.
	for i := range parts {
		address := fmt.Sprintf("10.1.%d.%d", (parts-i)/2>>8, (parts-i)/2&255)
		add(i > 0, address)
	}
	changes, _, err := batch.Add(&nodelocalv1.Update{Sync: &nodelocalv1.Sync{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range changes.Ports {
		if len(port.Cluster) != parts/2+1 || len(port.Serving) != parts/2+1 || len(port.NotServing) != parts/2+1 {
			t.Errorf("%d, %d and %d endpoints, want %d", len(port.Cluster), len(port.Serving), len(port.NotServing), parts/2+1)
		}
		for i, e := range port.Cluster {
			want := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
			if e != (model.Endpoint{AddrPort: want}) || port.Serving[i] != want || port.NotServing[i] != want {
				t.Fatalf("endpoint %d is %v and %s, want %s", i, e, port.Serving[i], want)
			}
		}
	}
}
