package integration

import (
	"net"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/proxy"
)

// firewall keeps connection tracking on while the proxy's tables are not there, as network plugins do.
const firewall = `add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; }
add rule inet firewall forward ct state established accept
add chain inet firewall output { type filter hook output priority 0; }
add rule inet firewall output ct state established accept
`

// A connection whose first packet came while the rules were not there was never translated, and its next packets share
// that. The proxy removes what conntrack has of it, and the client's next SYN finds an endpoint.
func TestUntranslatedConnection(t *testing.T) {
	g := flows.FindCase(t, "load-balancer-policy-cluster-is-masqueraded")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b := backendFor(t, c, g, proxy.Hooks{})
	cleaner, err := conntrack.NewCleaner(conntrack.CleanerOptions{NetNS: int(l.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	b.RemoveStaleFlows(cleaner)
	serve(t, l, g)
	lab.Nft(t, l.Node, firewall, "-f", "-")
	for _, tt := range []struct {
		name string
		from *lab.Host
		to   string
	}{
		{"from a pod to a load balancer IP", l.Client, "192.0.2.10:80"},
		{"from outside to a load balancer IP, over IPv6", l.Outside, "[2001:db8:192::10]:80"},
		{"from the node to a ClusterIP", l.Node, "10.96.0.10:80"},
	} {
		t.Run("finds an endpoint at its next SYN "+tt.name, func(t *testing.T) {
			lab.Nft(t, l.Node, "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n", "-f", "-")
			dialed := make(chan error, 1)
			go func() {
				dialed <- tt.from.Do(func() error {
					conn, err := net.DialTimeout("tcp", tt.to, await.Patience)
					if err == nil {
						conn.Close()
					}
					return err
				})
			}()
			time.Sleep(100 * time.Millisecond) // for the first SYN
			if repaired, err := b.Check(t.Context()); err != nil || !repaired {
				t.Fatalf("Check = %v, %v; want a repair", repaired, err)
			}
			if err := cleaner.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-dialed; err != nil {
				t.Error(err)
			}
		})
	}
}
