package nft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func TestReadOthers(t *testing.T) {
	t.Run("prints rules much as nft does", testOthersPrint)
	t.Run("asks the kernel for elements", testOthersLookup)
}

const others = `table inet fw {
	set bad { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.0.2.1 } }
	map ports { type inet_service : verdict; elements = { 80 : accept, * : drop } }
	set pairs { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 80-90 } }
	chain g {
	}
	chain f {
		type filter hook forward priority -5; policy drop;
		ct state established,related accept
		ip saddr 10.1.0.0/16 tcp dport { 22, 8000-9000 } counter drop
		ip6 daddr fd00::1 udp dport 53 accept
		iifname "eth*" oifname "cni0" jump g
		tcp dport vmap @ports
		ip saddr @bad reject
		meta mark & 0xff == 0x10 meta mark set 0x20
		limit rate 5/second goto g
		fib daddr type local accept
	}
}
table bridge b {
	chain c { type filter hook forward priority 0; }
}
`

func readOthers(t *testing.T) (*Conn, []*Table) {
	t.Helper()
	netns.EnterForTest(t)
	c := dial(t)
	ours := everything(FamilyIP)
	commitAll(t, c, Diff(nil, ours))
	runNft(t, others, "-f", "-")
	tables, err := c.ReadOthers(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) != 3 || tables[0] != ours || tables[2].Family.String() != "bridge" || tables[2].Chains[0].Name != "c" {
		t.Fatalf("ReadOthers = %v", tables)
	}
	return c, tables
}

func testOthersPrint(t *testing.T) {
	_, tables := readOthers(t)
	f := tables[1].Chain("f")
	if f.Hook != HookForward || f.Priority != -5 || !f.DropPolicy {
		t.Errorf("chain f is %s", f.header())
	}
	const want = `ct state established,related accept
ip saddr 10.1.0.0/16 tcp dport { 22, 8000-9000 } counter drop
ip6 daddr fd00::1 udp dport 53 accept
iifname "eth*" oifname "cni0" jump g
tcp dport vmap @ports
ip saddr @bad reject
meta mark & 0x000000ff == 0x00000010 meta mark set 0x00000020
limit rate 5/second burst 5 packets goto g
fib daddr type local accept
`
	var got strings.Builder
	for _, r := range f.Rules {
		got.WriteString(r.String() + "\n")
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

func testOthersLookup(t *testing.T) {
	c, tables := readOthers(t)
	addr := func(text string) Data { return AddrData(netip.MustParseAddr(text)) }
	for _, tc := range []struct {
		set   string
		key   Data
		found bool
		is    Verdict
	}{
		{set: "bad", key: addr("10.200.3.4"), found: true},
		{set: "bad", key: addr("11.0.0.0")},
		{set: "bad", key: addr("192.0.2.1"), found: true},
		{set: "bad", key: addr("9.255.255.255")},
		{set: "ports", key: PortData(80), found: true, is: Accept},
		{set: "ports", key: PortData(81), found: true, is: Drop},
		{set: "pairs", key: addr("10.9.9.9") + PortData(85), found: true},
		{set: "pairs", key: addr("10.9.9.9") + PortData(91)},
	} {
		e, found, err := c.Lookup(t.Context(), tables[1], tc.set, tc.key)
		if err != nil || found != tc.found || e.Verdict != tc.is {
			t.Errorf("%s of %x: %v, %v, %v", tc.set, tc.key, e, found, err)
		}
	}
	if _, _, err := c.Lookup(t.Context(), tables[1], "none", PortData(1)); err == nil {
		t.Error("no error for a set that does not exist")
	}
}

// No expressions make the decoder or the printer panic.
func FuzzExpressions(f *testing.F) {
	var a netlinkattr.List
	for _, x := range []Statement{Match{Field: IPSaddr, Value: netip.MustParsePrefix("10.0.0.0/8")}, Vmap{Concat{IPDaddr, ThDport}, "m"}, SetMark(1), Reject{Family: FamilyIP}} {
		list, err := NewRule(x).linearize()
		if err == nil {
			err = encodeExpressions(&a, FamilyIP, list)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add([]byte(a), uint8(unix.NFPROTO_INET))
	f.Fuzz(func(t *testing.T, data []byte, family uint8) {
		var r decodedRule
		_ = netlinkattr.Each(data, func(_ uint16, b []byte) error {
			r.exprs = append(r.exprs, decodeExpr(Family(family), b))
			return nil
		})
		_ = r.rule(Family(family), everything(FamilyIP).Set).String()
	})
}
