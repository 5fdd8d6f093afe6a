package nft

import (
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func TestForeignObjects(t *testing.T) {
	t.Run("are removed in one transaction", testForeignObjectsAreRemovedInOneTransaction)
	t.Run("that are flowtables are deleted by name", testForeignFlowtableIsDeletedByItsName)
}

func testForeignObjectsAreRemovedInOneTransaction(t *testing.T) {
	for _, tc := range []struct{ name, load string }{
		{"a rule with an anonymous set", "chain services { ip saddr { 10.0.0.1, 10.0.0.2 } drop; }"},
		{"a rule with an anonymous set in a chain of its own", "chain theirs { ip saddr { 10.0.0.1, 10.0.0.2 } drop; }"},
		{"a rule with an anonymous verdict map that leads to our chains", "chain services { ip saddr vmap { 10.0.0.1 : goto cluster-2, 10.0.0.2 : drop }; }"},
		{"a rule with an anonymous map", "chain nat-prerouting { dnat to ip saddr map { 10.0.0.1 : 10.0.0.2 }; }"},
		{"a rule with a chain of its own", "chain services { ip saddr 10.0.0.1 jump { counter; jump cluster-2; }; }"},
		{"a rule with a chain of its own that uses a set of theirs", `
			set theirs { type ipv4_addr; }
			chain services { ip saddr 10.0.0.1 jump { ip daddr @theirs drop; ip daddr { 10.0.0.1, 10.0.0.2 } drop; }; }`},
		{"chains that lead to each other and to ours", `
			chain theirs-1 { jump theirs-2; jump cluster-2; }
			chain theirs-2 { jump theirs-3; goto mark-for-masquerade; }
			chain theirs-3 { drop; }
			chain services { jump theirs-1; }`},
		{"a base chain", "chain theirs { type filter hook input priority 5; policy drop; ip saddr 10.0.0.1 jump mark-for-masquerade; }"},
		{"a verdict map that leads to chains of theirs and ours", `
			chain theirs { drop; }
			map theirs { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump theirs, 10.0.0.2 : goto cluster-2 }; }
			chain services { ip saddr vmap @theirs; }`},
		{"elements of ours that lead to a chain of theirs", `
			chain theirs { drop; }
			map service-ips { typeof ip daddr . meta l4proto . th dport : verdict; elements = { 10.7.7.7 . tcp . 80 : goto theirs }; }`},
		{"elements with timeouts", "set theirs { type ipv4_addr; flags timeout; timeout 1h; elements = { 10.0.0.1, 10.0.0.2 timeout 5m }; }"},
		{"elements with counters", "set theirs { type ipv4_addr; counter; elements = { 10.0.0.1 counter packets 5 bytes 6 }; }"},
		{"a set that packets add to, with a limit each", `
			set theirs { type ipv4_addr; flags dynamic; size 10; }
			chain services { add @theirs { ip saddr limit rate 1/second } accept; }`},
		{"a set with ranges", "set theirs { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/8, 11.0.0.1-11.0.0.9 }; }"},
		{"a counter that a rule uses", "counter theirs { }\nchain services { counter name theirs; }"},
		{"a quota that a map uses", `
			quota theirs { over 10 mbytes; }
			map theirs { type ipv4_addr : quota; elements = { 10.0.0.1 : "theirs" }; }
			chain services { quota name ip saddr map @theirs; }`},
		{"a limit and a counter of the same name", "limit theirs { rate 10/second; }\ncounter theirs { }\nchain services { limit name theirs accept; }"},
		{"a connection tracking helper", `ct helper theirs { type "ftp" protocol tcp; }
			chain filter-forward { ct helper set "theirs"; }`},
		{"a connection tracking timeout", "ct timeout theirs { protocol tcp; l3proto ip; policy = { established : 100 }; }"},
		{"a connection tracking expectation", "ct expectation theirs { protocol udp; dport 9876; timeout 2m; size 12; l3proto ip; }"},
		{"expressions that this package does not know", `
			chain services {
				limit rate 1/second accept
				ip saddr 10.0.0.1 counter packets 3 bytes 4 log prefix "x" drop
				ip dscp set cs1
				tcp option maxseg size set 1400
				meta time > 1000 drop
				ip saddr & 255.0.255.0 == 10.0.1.0 drop
				ct mark set meta mark
				th dport 80-90 drop
				quota over 1 mbytes drop
				iifname "a" oifname "b" meta skuid 0 accept
				ip daddr 10.0.0.1 ct count over 3 drop
			}`},
		{"everything at once", `
			counter theirs { }
			set theirs { type ipv4_addr; elements = { 10.0.0.1 }; }
			chain theirs { ip saddr @theirs counter name theirs jump cluster-2; ip saddr { 10.0.0.1, 10.0.0.3 } jump { jump theirs-too; }; }
			chain theirs-too { drop; }
			map theirs-too { type ipv4_addr : verdict; elements = { * : jump theirs-too }; }
			chain services { ip daddr vmap @theirs-too; jump theirs; }`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			want := everything(FamilyIP)
			commitAll(t, c, Diff(nil, want))
			before := runNft(t, "", "-s", "list", "ruleset")
			runNft(t, "table ip kube-proxy {\n"+tc.load+"\n}\n", "-f", "-")
			checkRecorded(t, c, want.Family, want.Name)
			checkRepaired(t, c, want)
			if after := runNft(t, "", "-s", "list", "ruleset"); strings.Join(listedLines(after), "\n") != strings.Join(listedLines(before), "\n") {
				t.Errorf("nft lists\n%s\nand listed\n%s", after, before)
			}
		})
	}
}

// A kernel without the module for flowtables still lists and deletes them in the same way, so the encoding is all there
// is to test here.
func testForeignFlowtableIsDeletedByItsName(t *testing.T) {
	a := start(FamilyIP, "kube-proxy", 64)
	a.Text(unix.NFTA_OBJ_NAME, "ft")
	o, err := decodeObject(a, true)
	if err != nil || o.String() != "flowtable ft" {
		t.Fatalf("decodeObject = %v, %v", o, err)
	}
	netns.EnterForTest(t)
	c := dial(t)
	have, want := everything(FamilyIP), everything(FamilyIP)
	commitAll(t, c, Diff(nil, want))
	have.Kernel = &KernelTable{Objects: []Object{o}}
	tx := Diff(have, want)
	if got := tx.String(); got != "delete flowtable ip kube-proxy ft\n" {
		t.Errorf("the repair is %q", got)
	}
	// The kernel understands it: it says that there is none.
	_, err = c.Commit(t.Context(), tx)
	if want := "delete flowtable ip kube-proxy ft: no such file or directory"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Commit = %v, want %q", err, want)
	}
}

// checkUnknown checks how a rule prints whose only expression has these attributes.
func checkUnknown(t *testing.T, name string, expression netlinkattr.List) {
	t.Helper()
	a := start(FamilyIP, "t", 64)
	list := a.Begin(unix.NFTA_RULE_EXPRESSIONS)
	a.Bytes(unix.NFTA_LIST_ELEM, expression)
	a.End(list)
	r, err := decodeRule(a)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if rule := delinearize(FamilyIP, func(string) *Set { return nil }, r.exprs); !strings.HasPrefix(rule.String(), "unknown-") || !rule.External() {
		t.Errorf("%s is read as %q", name, rule)
	}
}

// What google/nftables cannot decode, or panics on, is no reason for not reading the table.
func testForeignExpressionThatCannotBeDecodedIsUnknown(t *testing.T) {
	for _, name := range []string{"cmp", "numgen", "byteorder", "bitwise", "nat", "dynset", "fib"} {
		var a netlinkattr.List
		a.Text(unix.NFTA_EXPR_NAME, name)
		a.ByteString(unix.NFTA_EXPR_DATA, "\x05\x00\x01\x00\xff\x00\x00\x00\x05\x00\x02\x00\xff\x00\x00\x00\x05\x00\x03\x00\xff\x00\x00\x00\x09")
		checkUnknown(t, name, a)
	}
	for name := range exprTypes {
		var whole netlinkattr.List
		whole.Text(unix.NFTA_EXPR_NAME, name)
		for _, rest := range []string{"\x09\x00\x02\x00\xff", "\x01\x00\x02\x00"} {
			checkUnknown(t, "malformed "+name, append(whole, rest...))
		}
	}
	checkUnknown(t, "without a name", netlinkattr.List("\xff\x00\x01\x00x"))
}
