package stress

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/ti-mo/conntrack"
)

// The pods of this test, by number.
const (
	first byte = 1 + iota
	second
	keeper
)

var podNames = map[byte]string{first: "first", second: "second", keeper: "keeper"}

// enough is the number of datagrams that each client sends in each state of the cluster.
const enough = 20

func TestUDPFlows(t *testing.T) {
	t.Run("follow the endpoints", testUDPClientsFollowTheirEndpoints)
	t.Run("end when", testUDPFlowsEndWhen)
	t.Run("that were never translated find the first endpoint", testUDPFlowsThatWereNeverTranslatedFindTheFirstEndpoint)
}

// A client that sends all the time from one socket reaches the endpoint that replaces its own
// with every datagram that it sends once stale flows were removed, and a client whose endpoint stays notices nothing.
func testUDPClientsFollowTheirEndpoints(t *testing.T) {
	c := newCluster(t)
	c.answeringPods(t)
	c.sync(t, full(dns(first, keeper)...))
	var moving, staying []*udpClient
	for i := range model.Families {
		for _, to := range addressesOf(dns()[i]) {
			for _, from := range []*lab.Host{c.Client, c.Outside, c.Node} {
				pair := clientsOf(t, from, to, podNames[first], podNames[keeper])
				moving, staying = append(moving, pair[0]), append(staying, pair[1])
			}
		}
	}
	all := append(moving[:len(moving):len(moving)], staying...)
	for _, client := range all {
		go client.keepSending()
		defer func() { close(client.stop); <-client.stopped }()
	}
	sync := func(changes *model.Changes, wantSearches int) marks {
		t.Helper()
		c.searches = 0
		c.sync(t, changes)
		after := mark(all)
		if c.searches != wantSearches {
			t.Errorf("the connection tracking table was searched %d times, want %d", c.searches, wantSearches)
		}
		return after
	}

	start := mark(all)
	start.expect(t, moving, "first")
	start.expect(t, staying, "keeper")
	entries := c.entries(t)

	replaced := sync(only(dns(second, keeper)...), len(model.Families))
	replaced.expect(t, moving, "second", "keeper")
	start.expect(t, staying, "keeper")
	now := c.entries(t)
	for _, client := range staying {
		if id := flowName(client.source(), client.dialed); entries[id] == 0 || entries[id] != now[id] {
			t.Errorf("%s: conntrack entry %#x became %#x", client.name, entries[id], now[id])
		}
	}

	// An endpoint more, and another Service: nobody moves, and nobody searches.
	sync(only(append(dns(first, second, keeper), web())...), 0)
	replaced.expect(t, moving, "second", "keeper")
	start.expect(t, staying, "keeper")
	if diff := cmp.Diff(now, c.entries(t)); diff != "" {
		t.Errorf("entries that came or went because of an endpoint more:\n%s", diff)
	}

	// None serves, but all are listed, so flows stay where they are. Then one serves again, and takes over the others.
	sync(only(unreadyDNS(first, second, keeper)...), 0)
	replaced.expect(t, moving, "second", "keeper")
	start.expect(t, staying, "keeper")
	sync(only(dns(keeper)...), len(model.Families)).expect(t, all, "keeper")
	start.expect(t, staying, "keeper")
}

// answeringPods makes the pods, which answer datagrams over both families.
func (c *cluster) answeringPods(t *testing.T) {
	t.Helper()
	for number, name := range podNames {
		pod, err := c.AddPod(name, podIP(model.IPv4, number), podIP(model.IPv6, number))
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range model.Families {
			answerDatagrams(t, pod, netip.AddrPortFrom(podIP(family, number), targetPort))
		}
	}
}

// dns returns the ports of a UDP Service with every kind of address.
func dns(pods ...byte) (ports []*model.ServicePort) {
	for _, family := range model.Families {
		p := service("dns", model.UDP, family, 10, pods...)
		p.NodePort = 30053
		p.LoadBalancerIPs = []netip.Addr{clusterIP(family, 201)}
		p.ExternalIPs = []netip.Addr{clusterIP(family, 202)}
		ports = append(ports, p)
	}
	return ports
}

// addressesOf returns where a port is dialed from outside and inside.
func addressesOf(p *model.ServicePort) []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(p.ClusterIP, p.Port),
		netip.AddrPortFrom(lab.NodeAddrs.Like(p.ClusterIP), p.NodePort),
		netip.AddrPortFrom(p.LoadBalancerIPs[0], p.Port),
		netip.AddrPortFrom(p.ExternalIPs[0], p.Port),
	}
}

// clientsOf returns a client for each of the pods, which is drawn at the first datagram.
func clientsOf(t *testing.T, from *lab.Host, to netip.AddrPort, pods ...string) []*udpClient {
	t.Helper()
	clients := make([]*udpClient, len(pods))
	for range 100 {
		c := dialUDP(t, from, to)
		c.send()
		c.await(t, 0, 1)
		for i, pod := range pods {
			if clients[i] == nil && c.answers(0, 1)[pod] == 1 {
				clients[i] = c
			}
		}
		if !slices.Contains(clients, nil) {
			return clients
		}
	}
	t.Fatalf("100 clients from %s to %s never reached one of %v", from.Name, to, pods)
	return nil
}

// marks has the number of datagrams that each client had sent at an instant.
type marks map[*udpClient]int

func mark(clients []*udpClient) marks {
	m := marks{}
	for _, c := range clients {
		m[c] = c.count()
	}
	return m
}

// expect has every client send some more, and checks that all it sent since the mark was
// answered by one pod, which is one of those given, and that each of those was some client's.
func (m marks) expect(t *testing.T, clients []*udpClient, pods ...string) {
	t.Helper()
	until := mark(clients)
	seen := map[string]bool{}
	for _, c := range clients {
		to := until[c] + enough
		c.awaitSent(t, to)
		c.await(t, m[c], to)
		got := c.answers(m[c], to)
		one := slices.IndexFunc(pods, func(pod string) bool { return got[pod] == to-m[c] })
		if one < 0 {
			t.Errorf("%s: of %d datagrams these were answered: %v; want all by one of %v", c.name, to-m[c], got, pods)
			continue
		}
		seen[pods[one]] = true
	}
	if len(seen) != len(pods) {
		t.Errorf("no client had all its answers from one of %v, only from %v", pods, seen)
	}
}

// entries returns the numbers of the node's entries for UDP flows, by who dialed whom.
func (c *cluster) entries(t *testing.T) map[string]uint32 {
	t.Helper()
	table, err := conntrack.Dial(&netlink.Config{NetNS: int(c.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	listed, err := table.Dump(nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]uint32{}
	for _, e := range listed {
		if orig := e.TupleOrig; model.Protocol(orig.Proto.Protocol) == model.UDP {
			source := netip.AddrPortFrom(orig.IP.SourceAddress, orig.Proto.SourcePort)
			entries[flowName(source, netip.AddrPortFrom(orig.IP.DestinationAddress, orig.Proto.DestinationPort))] = e.ID
		}
	}
	return entries
}

func flowName(source, dialed netip.AddrPort) string { return fmt.Sprint(source, " to ", dialed) }
