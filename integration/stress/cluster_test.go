// Package stress holds tests that send a lot of traffic while a lot changes.
package stress

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// cluster is a lab with a proxy on its node, which gets the model from the test.
type cluster struct {
	*lab.Lab
	rules   *nft.Conn
	config  compiler.Config
	backend *proxy.Backend
	flows   *conntrack.Cleaner
	// searches is how often the connection tracking table was searched.
	searches int
}

// newCluster returns a cluster whose proxy has not synced yet.
func newCluster(t *testing.T, edits ...func(*compiler.Config)) *cluster {
	t.Helper()
	c := &cluster{Lab: lab.ForTest(t), config: compiler.Default()}
	c.config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	for _, edit := range edits {
		edit(&c.config)
	}
	c.rules = lab.Conn(t, c.Node)
	c.restart(t)
	return c
}

// restart puts a new proxy in the place of the old one. It knows nothing yet.
func (c *cluster) restart(t *testing.T) {
	t.Helper()
	b, err := proxy.NewBackend(c.rules, c.config, proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	c.flows, err = conntrack.NewCleaner(conntrack.CleanerOptions{
		NetNS:    int(c.Node.NetNS().Fd()),
		OnSearch: func(model.Family, conntrack.Stats, error) { c.searches++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.RemoveStaleFlows(c.flows)
	c.backend = b
}

// sync returns when the rules are as wanted and stale UDP flows are gone.
func (c *cluster) sync(t *testing.T, changes *model.Changes) {
	t.Helper()
	if err := c.backend.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	if err := c.flows.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// full is changes that say that the ports are all there are.
func full(ports ...*model.ServicePort) *model.Changes {
	changes := only(ports...)
	changes.Full = true
	changes.Node = &model.Node{Name: lab.NodeName, IPs: []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6}}
	changes.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	changes.ServiceCIDRsChanged = true
	return changes
}

// only is changes of the ports alone.
func only(ports ...*model.ServicePort) *model.Changes {
	changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	for _, p := range ports {
		changes.Ports[p.ID] = p
	}
	return changes
}

// clusterIP returns the ClusterIP of that number.
func clusterIP(family model.Family, n byte) netip.Addr {
	if family == model.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, n})
}

// podIP returns the address of that number among the pods of node-1.
func podIP(family model.Family, n byte) netip.Addr {
	if family == model.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0x02, 0x44, 0, 0x01, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 244, 1, n})
}

const targetPort = 8080

// endpoints are pods of node-1, by number.
func endpoints(family model.Family, numbers ...byte) (list []model.Endpoint) {
	for _, n := range numbers {
		list = append(list, model.Endpoint{AddrPort: netip.AddrPortFrom(podIP(family, n), targetPort), Local: true})
	}
	return list
}

// service returns a ClusterIP Service port of that number with those pods behind it.
func service(name string, protocol model.Protocol, family model.Family, number byte, pods ...byte) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: name, Protocol: protocol, Family: family},
		ClusterIP: clusterIP(family, number), Port: 80,
		Cluster: endpoints(family, pods...),
	}
	p.Local = p.Cluster
	if protocol == model.UDP {
		for _, e := range p.Cluster {
			p.Serving = append(p.Serving, e.AddrPort)
		}
	}
	return p
}
