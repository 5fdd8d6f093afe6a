package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// others are rules of other programs, and the outcomes of a packet to a Service beside them.
var others = []struct {
	name string
	// script is for sh.
	script string
	// want begins each outcome that explain prints, in their order.
	want []string
	// dependsOn is in the text of explain.
	dependsOn string
}{
	{
		name:   "a chain with policy drop",
		script: `nft add table inet fw; nft 'add chain inet fw f { type filter hook forward priority -5; policy drop; }'`,
		want:   []string{"dropped by inet fw, chain f (policy drop)"},
	},
	{
		name: "rules as firewalld makes them",
		script: `nft -f - <<X
table inet firewalld {
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept;
		jump mangle_PREROUTING_ZONES
	}
	chain mangle_PREROUTING_ZONES {
		iifname "veth*" goto zone
		goto zone
	}
	chain zone {
	}
	chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state { invalid } drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96 } reject with icmpv6 addr-unreachable
		jump zone
		reject with icmpx admin-prohibited
	}
}
X`,
		want: []string{"to 10.244.1.5:8080 or 10.244.1.6:8080, source kept"},
	},
	{
		name: "a set of ranges that refuses a client",
		script: `nft -f - <<X
table inet fw {
	set bad { type ipv4_addr; flags interval; elements = { 198.51.100.0/25, 203.0.113.1 } }
	chain f { type filter hook forward priority 0; policy accept;
		ip saddr @bad tcp dport { 80, 8000-8999 } counter reject with tcp reset
	}
}
X`,
		want: []string{"refused by inet fw, chain f: ip saddr @bad tcp dport { 80, 8000-8999 } counter reject"},
	},
	{
		name: "a verdict map of ranges",
		script: `nft -f - <<X
table ip fw {
	chain outside { drop; }
	chain f { type filter hook forward priority 0; policy accept;
		ip saddr . tcp dport vmap { 203.0.113.0/24 . 1-65535 : drop, 198.51.100.0-198.51.100.9 . 8080 : goto outside }
	}
}
X`,
		want: []string{"dropped by ip fw, chain outside: drop"},
	},
	{
		name: "a mark that decides later",
		script: `nft -f - <<X
table inet fw {
	chain early { type filter hook prerouting priority raw; ip daddr 192.0.2.0/24 meta mark set 0x10; }
	chain late { type filter hook postrouting priority 200; meta mark & 0xff == 0x10 drop; }
}
X`,
		want: []string{"dropped by inet fw, chain late: meta mark "},
	},
	{
		name: "the destination translated before",
		script: `nft add table ip other; nft 'add chain ip other p { type nat hook prerouting priority -150; }'
nft add rule ip other p ip daddr 192.0.2.10 tcp dport 80 dnat to 10.244.1.6:8080`,
		want: []string{"to 10.244.1.6:8080, source kept"},
	},
	{
		name: "chains of one priority",
		script: `nft add table ip a; nft 'add chain ip a c { type filter hook forward priority 7; }'; nft add rule ip a c drop
nft add table ip b; nft 'add chain ip b c { type filter hook forward priority 7; }'; nft add rule ip b c reject with tcp reset`,
		want: []string{"refused by ip b, chain c: meta l4proto tcp reject"},
	},
	{
		name: "Docker's rules by iptables-nft",
		script: `iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER; iptables-nft -t nat -N DOCKER
iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -A FORWARD -o docker0 -j DOCKER; iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables-nft -t nat -A DOCKER ! -i docker0 -p tcp --dport 80 -j DNAT --to-destination 172.17.0.2:80
iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE`,
		want: []string{"dropped by ip filter, chain FORWARD (policy drop)"},
	},
	{
		name: "Docker's rules, and one that lets Services pass",
		script: `iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -m comment --comment "translated" -m conntrack --ctstate DNAT -j ACCEPT
iptables-nft -A FORWARD -p tcp -m multiport --dports 80,443 -j ACCEPT`,
		want: []string{"to 10.244.1.5:8080 or 10.244.1.6:8080, source kept"},
	},
	{
		name: "rules as ufw makes them",
		script: `iptables-nft -P FORWARD DROP; iptables-nft -N ufw-before-forward; iptables-nft -N ufw-user-forward; iptables-nft -N ufw-logging-deny
iptables-nft -A FORWARD -j ufw-before-forward; iptables-nft -A FORWARD -j ufw-user-forward
iptables-nft -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -A ufw-user-forward -m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN
iptables-nft -A ufw-user-forward -p tcp --dport 8080 -s 198.51.100.0/24 -j REJECT`,
		want: []string{"refused by ip filter, chain ufw-user-forward: "},
	},
	{
		name: "a rate limit",
		script: `nft -f - <<X
table inet fw {
	chain f { type filter hook forward priority 0; policy drop;
		ct state established accept
		limit rate 1/hour burst 1 packets accept
	}
}
X`,
		want:      []string{"dropped by inet fw, chain f (policy drop)", "to 10.244.1.5:8080 or 10.244.1.6:8080, source kept"},
		dependsOn: "depends on inet fw, chain f: limit rate 1 accept (if this does not match)",
	},
}

// explain follows a packet through the tables of other programs, and says what becomes of real packets.
func testRuledumpOthers(t *testing.T) {
	l := lab.ForTest(t)
	tables := exampleTables(t)
	for _, addr := range []string{"10.244.1.5", "10.244.1.6"} {
		pod, err := l.AddPod(addr, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, addr+":8080", lab.Echo)
	}
	for _, o := range others {
		t.Run(o.name, func(t *testing.T) {
			lab.Nft(t, l.Node, "", "flush", "ruleset")
			replace(t, lab.Conn(t, l.Node), tables)
			script := lab.StartCommand(t, l.Node, exec.Command("sh", "-e", "-c", o.script))
			if err := script.Wait(); err != nil {
				t.Fatal(err, script.Output())
			}
			explain := []string{"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}
			text := runRuledump(t, l.Node, explain...)
			var e verb.Explanation
			if err := json.Unmarshal([]byte(runRuledump(t, l.Node, append(explain, "-o=json")...)), &e); err != nil {
				t.Fatal(err)
			}
			for at, want := range o.want {
				if !strings.Contains(text, "\n"+want) || len(e.Outcomes) != len(o.want) || e.Outcomes[at].Result != strings.Fields(strings.Replace(want, "to ", "delivered ", 1))[0] {
					t.Errorf("no outcome %q\n%s", want, text)
				}
			}
			fromDump := explainDump(t, runRuledump(t, l.Node, "live", "-o=json"), explain...)
			if diff := cmp.Diff(e.Outcomes, fromDump.Outcomes, cmpopts.IgnoreUnexported(verb.Outcome{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("-live +dump:\n%s", diff)
			}
			if !strings.Contains(text, o.dependsOn) {
				t.Errorf("no %q in\n%s", o.dependsOn, text)
			}
			for range o.want {
				result := sent(t, l.Outside, "192.0.2.10:80")
				at := slices.IndexFunc(e.Outcomes, func(o verb.Outcome) bool { return o.Result == result })
				if at < 0 {
					t.Fatalf("the packet was %s; explain says\n%s", result, text)
				}
				e.Outcomes = slices.Delete(e.Outcomes, at, at+1)
			}
		})
	}
}

// explainDump runs explain on a dump, outside of the node.
func explainDump(t *testing.T, dump string, explain ...string) (e verb.Explanation) {
	t.Helper()
	root := verb.New("ruledump")
	var out strings.Builder
	root.SetIn(strings.NewReader(dump))
	root.SetOut(&out)
	root.SetArgs(append(explain, "--dump=-", "-o=json"))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// A dump leaves out a set that is too large, and explain says so.
func testDumpLeavesOut(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	var large strings.Builder
	large.WriteString("table inet fw {\n set large { type ipv4_addr . inet_service; elements = { 198.51.100.7 . 8080")
	for i := range nft.MaxRecordedElements {
		fmt.Fprintf(&large, ", 203.0.%d.%d . %d", i>>8&0xff, i&0xff, i+1)
	}
	large.WriteString(" }\n}\n set none { type ipv4_addr; }\n chain f { type filter hook forward priority 0; ip saddr @none drop; ip saddr . tcp dport @large drop; }\n}\n")
	lab.Nft(t, l.Node, large.String(), "-f", "-")
	explain := []string{"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}
	if text := runRuledump(t, l.Node, explain...); !strings.Contains(text, "\ndropped by inet fw, chain f: ip saddr . tcp dport @large drop\n") {
		t.Errorf("the kernel's rules:\n%s", text)
	}
	dump := runRuledump(t, l.Node, "live", "-o=json")
	if len(dump) > 1<<20 || !strings.Contains(dump, `"the elements of set large: there are more than 10000"`) || strings.Contains(dump, "set none:") {
		t.Errorf("a dump of %d bytes", len(dump))
	}
	e := explainDump(t, dump, explain...)
	if o := e.Outcomes; len(o) != 1 || o[0].Result != "undecided" || o[0].DecidedBy == nil || o[0].DecidedBy.Verdict != "set large has more than 10000 elements, which the dump leaves out" {
		t.Errorf("from the dump: %+v", o)
	}
}

// sent says what became of the first packet of a connection.
func sent(t *testing.T, from *lab.Host, to string) string {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", to)
	switch {
	case err == nil:
		conn.Close()
		return "delivered"
	case errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) >= 400*time.Millisecond:
		return "dropped"
	}
	return "refused"
}
