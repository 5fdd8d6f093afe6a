package nft

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// countingTable counts UDP packets that leave for port 9 of 127.0.0.1 and of 127.0.0.2.
func countingTable() *Table {
	counted := &Set{Name: "counted", Key: Concat{IPDaddr, MetaL4proto, ThDport}, Counter: true, Comment: "who dials what"}
	for _, addr := range []string{"127.0.0.1", "127.0.0.2"} {
		counted.Put(Element{Key: countedKey(addr), Comment: "discard at " + addr})
	}
	return &Table{Family: FamilyIP, Name: "kube-proxy", Sets: []*Set{counted}, Chains: []*Chain{{
		Name: "output", Type: TypeFilter, Hook: HookOutput, Priority: PriorityFilter, Rules: []Rule{NewRule(InSet{Key: counted.Key, Set: counted.Name})},
	}}}
}

func countedKey(addr string) Data {
	return AddrData(netip.MustParseAddr(addr)) + ProtoData(unix.IPPROTO_UDP) + PortData(9)
}

func sendUDP(t *testing.T, to string, packets int) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0") // which does not hear that nobody listens
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range packets {
		if _, err := conn.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))); err != nil {
			t.Fatal(err)
		}
	}
}

// loopbackUp lets packets leave for loopback addresses of the test's own namespace.
func loopbackUp(t *testing.T) {
	t.Helper()
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
		t.Fatal(err)
	}
}

// countsOf reads what the elements of the set have counted, by their comments.
func countsOf(t *testing.T, c *Conn) map[string]Count {
	t.Helper()
	got := map[string]Count{}
	whole, err := c.Counts(t.Context(), FamilyIP, "kube-proxy", "counted", func(e Element, n Count) {
		if _, found := countingTable().Set("counted").Element(e.Key); !found {
			t.Errorf("element with the key %x", string(e.Key))
		}
		got[e.Comment] = n
	})
	if err != nil || !whole {
		t.Fatalf("whole: %v, error: %v", whole, err)
	}
	return got
}

func TestSetCounter(t *testing.T) {
	netns.EnterForTest(t)
	loopbackUp(t)
	c := dial(t)
	want := countingTable()
	commitAll(t, c, Diff(nil, want))
	sendUDP(t, "127.0.0.1:9", 3)
	// 20 bytes of IP, 8 of UDP, 5 of text.
	counted := map[string]Count{"discard at 127.0.0.1": {3, 99}, "discard at 127.0.0.2": {}}
	if diff := cmp.Diff(counted, countsOf(t, c)); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	t.Run("is no difference", func(t *testing.T) {
		have := readBack(t, c, want.Family, want.Name)
		if tx := Diff(have, want); !tx.Empty() {
			t.Errorf("Diff finds\n%s", tx)
		}
		if tx, err := c.Compare(t.Context(), want, CompareOptions{}); err != nil || !tx.Empty() {
			t.Errorf("Compare finds %v\n%s", err, tx)
		}
		if diff := cmp.Diff(want.String(), have.String()); diff != "" {
			t.Errorf("the listing, -want +got:\n%s", diff)
		}
	})
	t.Run("stays when another element comes", func(t *testing.T) {
		more := countingTable()
		more.Sets[0].Put(Element{Key: countedKey("127.0.0.3")})
		commitAll(t, c, Diff(readBack(t, c, want.Family, want.Name), more))
		commitAll(t, c, Diff(more, want))
		if diff := cmp.Diff(counted, countsOf(t, c)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
	t.Run("that is missing makes the set anew", func(t *testing.T) {
		plain := countingTable()
		plain.Sets[0].Counter = false
		commitAll(t, c, Diff(readBack(t, c, want.Family, want.Name), plain))
		if tx := Diff(readBack(t, c, want.Family, want.Name), want); !tx.AddsTable() {
			t.Errorf("a set that counts is made of one that does not by\n%s", tx)
		}
	})
}

func TestSetCounterListing(t *testing.T) {
	netns.EnterForTest(t)
	loopbackUp(t)
	c := dial(t)
	want := countingTable()
	commitAll(t, c, Diff(nil, want))
	sendUDP(t, "127.0.0.2:9", 1)
	listing := runNft(t, "", "list", "ruleset")
	for _, text := range []string{"\t\tcounter\n", `127.0.0.2 . udp . 9 counter packets 1 bytes 33 comment "discard at 127.0.0.2"`, "ip daddr . meta l4proto . th dport @counted"} {
		if !strings.Contains(listing, text) {
			t.Errorf("nft lists no %q:\n%s", text, listing)
		}
	}
	for name, text := range map[string]string{"its own listing": listing, "what this package prints": want.String()} {
		t.Run("loads "+name, func(t *testing.T) {
			netns.EnterForTest(t)
			runNft(t, text, "-f", "-")
			if tx := Diff(readBack(t, dial(t), want.Family, want.Name), want); !tx.Empty() {
				t.Errorf("then there is a difference:\n%s", tx)
			}
		})
	}
}
