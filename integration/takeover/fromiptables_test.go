package takeover

import (
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

var (
	takeovers   = flag.Int("takeovers", 3, "how often to take over from each variant of iptables, and to go back")
	oldServices = flag.Int("old-services", 0, "how many more Services the old rules have, with three chains each")
)

// ofOthers are rules beside kube-proxy's.
const ofOthers = `*filter
:MINE - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j MINE
-A MINE -m comment --comment kube-services -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT
-A CNI-HOSTPORT -p tcp -m tcp --dport 9999 -j REDIRECT --to-ports 80
COMMIT
`

// TestTakeoverFromModeIPTables swaps kube-proxy in mode iptables for this one and back under one traffic. Every second
// process is killed at some instant of the takeover, and the next one goes on.
func TestTakeoverFromModeIPTables(t *testing.T) {
	for _, variant := range variants {
		t.Run("iptables-"+variant, func(t *testing.T) {
			l := lab.ForTest(t)
			c := lab.Conn(t, l.Node)
			for _, commands := range commandsOf(variant) {
				runIn(t, l.Node, ofOthers, commands.restore)
			}
			others := withoutKubelet(t, l.Node, variant)
			leaveIPTables(t, l.Node, variant)
			// In mode iptables nothing answers at a port that a ClusterIP does not have.
			tr := startStreams(t, l, slices.DeleteFunc(streamsOf(l), func(s *stream) bool { return s.to == "10.96.0.10:81" }))
			var inTakeovers, onTheWayBack []error
			for round := range *takeovers {
				if round%2 == 1 {
					p := startOurs(t, l.Node)
					time.Sleep(time.Duration(round) * 23 % 400 * time.Millisecond)
					if err := p.Cmd.Process.Kill(); err != nil {
						t.Fatal(err)
					}
					_ = p.Wait()
				}
				p := startOurs(t, l.Node)
				awaitOurs(t, c)
				awaitNoLeftovers(t, l.Node, variant)
				if diff := cmp.Diff(others, withoutKubelet(t, l.Node, variant)); diff != "" {
					t.Errorf("rules of others (-before +after):\n%s", diff)
				}
				tr.flow(t)
				if round == *takeovers-1 {
					break
				}
				// The way back: kube-proxy's rules, then the end of this proxy and its tables. After it, clients with session
				// affinity can have connections to several endpoints, and the next takeover knows one of them.
				p.Stop(t)
				tr.mayMove()
				lost := tr.takeLost()
				leaveIPTables(t, l.Node, variant)
				if _, err := c.Commit(t.Context(), deletion(t, c)); err != nil {
					t.Fatal(err)
				}
				tr.flow(t)
				inTakeovers, onTheWayBack = append(inTakeovers, lost...), append(onTheWayBack, tr.takeLost()...)
			}
			tr.finish(t)
			if inTakeovers = append(inTakeovers, tr.lost...); len(inTakeovers) > 0 {
				t.Errorf("%d connections went wrong in takeovers: %v", len(inTakeovers), inTakeovers)
			}
			t.Logf("on the way back went wrong: %v", onTheWayBack)
			if len(onTheWayBack) > unlucky+*takeovers/25 {
				t.Errorf("%d connections went wrong on the way back", len(onTheWayBack))
			}
		})
	}
}

// takeLost returns the connections that went wrong since the last call.
func (tr *traffic) takeLost() (lost []error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	lost, tr.lost = tr.lost, nil
	return lost
}

// mayMove lets clients with session affinity reach other endpoints from now on.
func (tr *traffic) mayMove() {
	for _, s := range tr.streams {
		s.moving.Store(true)
	}
}

// deletion returns the transaction that deletes this proxy's tables.
func deletion(t *testing.T, c *nft.Conn) (tx nft.Transaction) {
	t.Helper()
	for _, family := range nft.Families {
		table, err := c.ReadTable(t.Context(), family, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		tx.Append(nft.Diff(table, nil))
	}
	return tx
}

// withoutKubelet returns the saved rules of both families without KUBE-FIREWALL, which
// kube-proxy makes and leaves for the kubelet.
func withoutKubelet(t *testing.T, h *lab.Host, variant string) string {
	t.Helper()
	var lines []string
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"filter", "nat"} {
			for line := range strings.Lines(runIn(t, h, "", commandsOf(variant)[family].save, "-t", table)) {
				if !strings.Contains(line, "KUBE-FIREWALL") && !strings.HasPrefix(line, "#") {
					line, _, _ = strings.Cut(line, " [")
					lines = append(lines, line)
				}
			}
		}
	}
	return strings.Join(lines, "\n")
}

func awaitNoLeftovers(t *testing.T, h *lab.Host, variant string) {
	t.Helper()
	await.Until(t, "the old rules are gone", func() error {
		for family := range commandsOf(variant) {
			if rules := savedIPTables(t, h, variant, family); strings.Contains(strings.ReplaceAll(rules, "KUBE-FIREWALL", ""), ":KUBE-") {
				return errors.New("some are there")
			}
		}
		return nil
	})
}
