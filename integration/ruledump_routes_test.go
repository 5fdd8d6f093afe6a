package integration

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// farService has one endpoint, which is on the other node.
const farService = `
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec:
  clusterIP: 10.96.0.77
  ports: [{name: http, port: 80, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, namespace: shop, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 8053, protocol: UDP}]
endpoints: [{addresses: [10.244.2.6], nodeName: node-2}]
`

// routed is a lab whose node serves farService.
type routed struct {
	*lab.Lab
	// arrived counts the datagrams that came to the endpoint.
	arrived atomic.Int32
}

func newRouted(t *testing.T) *routed {
	t.Helper()
	r := &routed{Lab: lab.ForTest(t)}
	endpoint := netip.MustParseAddr("10.244.2.6")
	if err := r.AddRemoteAddr(endpoint); err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, r.Remote, "10.244.2.6:8080", lab.Echo)
	server, err := r.Remote.AnswerUDP(netip.AddrPortFrom(endpoint, 8053), func([]byte, netip.AddrPort) []byte { r.arrived.Add(1); return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "far.yaml"), []byte(farService), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ruledump.FromManifests(dir, ruledump.Compilation{Node: "node-1", Config: exampleConfig})
	if err != nil {
		t.Fatal(err)
	}
	replace(t, lab.Conn(t, r.Node), s.Tables)
	return r
}

// datagram sends a datagram to the Service, and reports whether it comes to the endpoint.
func (r *routed) datagram(t *testing.T, host *lab.Host, from string, wanted bool) bool {
	t.Helper()
	before, patience := r.arrived.Load(), 300*time.Millisecond
	if wanted {
		patience = await.Patience
	}
	client, err := host.ListenUDP(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.96.0.77:53")); err != nil {
		return false // the node's own packet has no route
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if r.arrived.Load() > before {
			return true
		}
	}
	return false
}

// change changes the node, by lines of the program ip, and by sysctls "NAME=VALUE".
func (r *routed) change(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, value, isSysctl := strings.Cut(line, "=")
		if !isSysctl {
			r.ip(t, r.Node, line)
		} else if err := r.Node.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }); err != nil {
			t.Fatal(err)
		}
	}
}

// ip runs the program ip of iproute2 on a host, once for each line.
func (r *routed) ip(t *testing.T, h *lab.Host, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if p := lab.StartCommand(t, h, exec.Command("ip", strings.Fields(line)...)); p.Wait() != nil {
			t.Fatalf("ip %s: %s", line, p.Output())
		}
	}
}

// explained returns what explain says of a first datagram, by the kernel and by a dump of it.
func (r *routed) explained(t *testing.T, from, to string) (text string, e, fromDump verb.Explanation) {
	t.Helper()
	args := []string{"explain", "--from=" + from, "--to=" + to}
	text = runRuledump(t, r.Node, args...)
	if err := json.Unmarshal([]byte(runRuledump(t, r.Node, append(args, "-o=json")...)), &e); err != nil {
		t.Fatal(err)
	}
	return text, e, explainDump(t, runRuledump(t, r.Node, "live", "-o=json"), args...)
}

// Explain says what the kernel's routing does to a packet, from the kernel and from a dump; real packets are the judge.
func TestRuledumpRoutes(t *testing.T) {
	t.Parallel()
	const client, far, stranger = "10.244.1.250", "10.244.2.99", "203.0.113.9"
	for _, tt := range []struct {
		name string
		// from is the client: the pod on the node, or one outside.
		from string
		// change changes the node. Without it the packet arrives.
		change []string
		want   verb.Reason
		// says is a part of the text.
		says string
		// dump is the reason by a dump, if it is another one.
		dump verb.Reason
		// arrives says that the packet arrives all the same.
		arrives bool
	}{
		{name: "as it should be", from: client, want: verb.ReasonServed, says: "    routing: forwarded to 10.244.2.6 via 192.168.0.2 dev eth0\n", arrives: true},
		{
			name: "no route", from: client, change: []string{"route del 10.244.2.0/24", "route del default"},
			want: verb.ReasonNoRoute, says: "refused: there is no route to 10.244.2.6\n",
		},
		{
			name: "the default route", from: client, change: []string{"route del 10.244.2.0/24"}, want: verb.ReasonServed,
			says: "10.244.2.6: leaves by the default route, via 198.51.100.7 dev outside: either the network there routes pods' addresses, or a route is missing here\n",
		},
		{name: "ip_forward", from: client, change: []string{"ipv4/ip_forward=0"}, want: verb.ReasonForwardingOff, says: "dropped: ip_forward is 0\n"},
		{
			name: "forwarding of a device", from: far, change: []string{"ipv4/conf/outside/forwarding=0"},
			want: verb.ReasonForwardingOff, says: "dropped: forwarding of outside is 0\n",
		},
		{
			name: "strict rp_filter", from: far, change: []string{"ipv4/conf/outside/rp_filter=1"},
			want: verb.ReasonReversePath, says: "dropped: rp_filter of outside is strict and the way back to 10.244.2.99 is by eth0\n",
		},
		{
			name: "strict rp_filter of all devices", from: far, change: []string{"ipv4/conf/all/rp_filter=1"},
			want: verb.ReasonReversePath, says: "dropped: rp_filter of outside is strict and the way back to 10.244.2.99 is by eth0\n",
		},
		{
			name: "loose rp_filter", from: far, change: []string{"ipv4/conf/outside/rp_filter=2", "ipv4/conf/all/rp_filter=1", "addr add 203.0.113.1/32 dev outside"},
			want: verb.ReasonServed, says: "to 10.244.2.6:8053", arrives: true,
		},
		{
			name: "loose rp_filter of a device without an address", from: far, change: []string{"ipv4/conf/outside/rp_filter=2"}, want: verb.ReasonReversePath,
			says: "dropped: rp_filter of outside is loose, which is strict without an address, and the way back to 10.244.2.99 is by eth0\n",
		},
		{
			name: "loose rp_filter without a way back", from: stranger, change: []string{"ipv4/conf/outside/rp_filter=2", "addr add 203.0.113.1/32 dev outside", "route del default"},
			want: verb.ReasonReversePath, says: "dropped: rp_filter of outside is loose and there is no way back to 203.0.113.9\n",
		},
		{name: "a route of type blackhole", from: client, change: []string{"route add blackhole 10.244.2.6/32"}, want: verb.ReasonBlackholed, says: "dropped: there is only a route of type blackhole to 10.244.2.6\n"},
		{name: "a route of type prohibit", from: client, change: []string{"route add prohibit 10.244.2.6/32"}, want: verb.ReasonProhibited, says: "refused: there is only a route of type prohibit to 10.244.2.6\n"},
		{
			name: "a rule for the interface", from: client, change: []string{"route add unreachable 10.244.2.0/24 table 100", "rule add iif veth-3 lookup 100"},
			want: verb.ReasonUnreachable, says: "refused: there is only a route of type unreachable to 10.244.2.6\n",
		},
		{
			// Not modelled: only the kernel knows what such a rule does.
			name: "a rule that only the kernel follows", from: client, change: []string{"rule add lookup main suppress_prefixlength 0 pref 100"},
			want: verb.ReasonServed, says: "    routing: forwarded to 10.244.2.6 via 192.168.0.2 dev eth0\n", dump: verb.ReasonRoutingUnknown, arrives: true,
		},
		{
			// The kernel is not asked either: the library's question has no ports.
			name: "a rule for ports", from: client, change: []string{"rule add ipproto udp dport 8053 blackhole pref 100"},
			want: verb.ReasonRoutingUnknown, says: "whether the routing rule applies is not known: dport ipproto blackhole",
		},
		{
			name: "two next hops", from: client, change: []string{"route replace 10.244.2.0/24 nexthop via 192.168.0.2 nexthop via 192.168.0.2 weight 2"},
			want: verb.ReasonServed, says: "    routing: forwarded to 10.244.2.6 via 192.168.0.2 dev eth0 or via 192.168.0.2 dev eth0\n", arrives: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRouted(t)
			host, from := r.Client, tt.from
			if tt.from != client {
				host, from = r.Outside, tt.from+"%outside"
				r.ip(t, host, "addr add "+tt.from+"/32 dev eth0")
			}
			if !r.datagram(t, host, tt.from, true) {
				t.Fatal("before the change no datagram arrives")
			}
			r.change(t, tt.change...)
			if arrives := r.datagram(t, host, tt.from, tt.arrives); arrives != tt.arrives {
				t.Errorf("the datagram arrives: %v", arrives)
			}
			text, e, fromDump := r.explained(t, from, "10.96.0.77:53/udp")
			if got := e.Outcomes[0].Reason; len(e.Outcomes) != 1 || got != tt.want || !strings.Contains(text, tt.says) {
				t.Errorf("explain says %s, want %s and %q:\n%s", got, tt.want, tt.says, text)
			}
			if got, want := fromDump.Outcomes[0].Reason, cmp.Or(tt.dump, tt.want); got != want {
				t.Errorf("from a dump explain says %s, want %s: %s", got, want, fromDump.Outcomes[0].Why)
			}
		})
	}
}
