package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
)

// foreignCases are archives of rules of other programs, with flows to the example's Services beside them:
//
//	foreign.nft                            rules for nft -f
//	foreign.ip.rules, foreign.ip6.rules    or for iptables-nft-restore and ip6tables-nft-restore; iptables-legacy comes to the
//	                                       same
//	flows.yaml                             packets, and the expected result of each
//	explain.txt                            what explain says about each; rewritten with -update
const foreignCases = "../testdata/foreign/*.txtar"

// explain follows a packet through the tables of other programs, and says what becomes of real packets.
func testRuledumpOthers(t *testing.T) {
	labs := map[podNetwork]*lab.Lab{}
	paths, err := filepath.Glob(foreignCases)
	if err != nil || len(paths) < 10 {
		t.Fatal(err, paths)
	}
	for _, path := range paths {
		rules, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		networks := []podNetwork{{name: "veths"}}
		if bytes.Contains(rules, []byte("\ntable bridge ")) {
			networks = bridges()
		}
		for _, network := range networks {
			if labs[network] == nil {
				labs[network] = foreignLab(t, network)
			}
			l := labs[network]
			t.Run(name+" over "+network.name, func(t *testing.T) { testForeign(t, l, path, "nft") })
			if bytes.Contains(rules, []byte("-- foreign.ip.rules --")) {
				t.Run(name+" by iptables-legacy", func(t *testing.T) { testForeign(t, l, path, "legacy") })
			}
		}
	}
}

// foreignLab returns a lab with endpoints of the example's Services, whose bridge knows the port of each pod.
func foreignLab(t *testing.T, network podNetwork) *lab.Lab {
	t.Helper()
	l := network.lab(t)
	pods := []*lab.Host{l.Client}
	for _, addr := range []string{"10.244.1.5", "10.244.1.6"} {
		pod, err := l.AddPod(addr, netip.MustParseAddr(addr))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, addr+":8080", lab.Echo)
		pods = append(pods, pod)
	}
	if err := l.AddRemoteAddr(netip.MustParseAddr("10.244.2.6")); err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, l.Remote, "10.244.2.6:8080", lab.Echo)
	for _, addr := range []string{"192.168.0.1:22", "192.168.0.1:9999", "[fd00:1::1]:22", "[fd00:1::1]:9999"} {
		lab.ServeTCP(t, l.Node, addr, lab.Echo)
	}
	if network.bridge != "" {
		await.Until(t, "the bridge has learnt the ports of the pods", func() error { return l.Node.Do(func() error { return knowPorts(t, pods) }) })
	}
	return l
}

// knowPorts is an error if a bridge of this namespace does not know the ports of all pods. Then these say something.
func knowPorts(t *testing.T, pods []*lab.Host) error {
	entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e netlink.Neigh) bool { return e.MasterIndex == 0 || e.State&netlink.NUD_PERMANENT != 0 })
	if len(entries) >= len(pods) {
		return nil
	}
	for _, pod := range pods {
		conn, err := pod.DialContext(t.Context(), "udp", netip.AddrPortFrom(lab.GatewayAddrs.IPv4, 9).String())
		if err != nil {
			return err
		}
		_, _ = conn.Write([]byte("x"))
		conn.Close()
	}
	return fmt.Errorf("it knows %d of %d", len(entries), len(pods))
}

// testForeign plays a case. The variant is that of iptables.
func testForeign(t *testing.T, l *lab.Lab, path, variant string) {
	lab.Nft(t, l.Node, "", "flush", "ruleset")
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	if err := l.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
	archive, sends, golden := loadForeign(t, l.Node, path, variant)
	dump := runRuledump(t, l.Node, "live", "-o=json")
	var said strings.Builder
	for _, f := range sends {
		fmt.Fprintf(&said, "# %s\n", f.Name)
		explainFlow(t, l.Node, f, dump, &said)
	}
	if *update && variant == "nft" {
		golden.Data = []byte(said.String())
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(plainRules(string(golden.Data)), plainRules(said.String())); diff != "" {
		t.Errorf("explain says (-golden +now):\n%s", diff)
	}
	for _, f := range sends {
		want := explained(f)
		if f.Expect.Result == flows.Untouched {
			want = "delivered" // to the address itself
		}
		if result := dialled(t, hostOf(l, f.From), f.From.Addr(f.To.Addr()), f.To, want); result != want {
			t.Errorf("%s: the packet was %s, want %s", f.Name, result, want)
		}
	}
}

// plainRules returns what explain says without what differs between the variants of iptables.
func plainRules(said string) string {
	return regexp.MustCompile(` xt match "comment"| comment "[^"]*"| counter| \(iptables-legacy\)`).ReplaceAllString(said, "")
}

// loadForeign loads the rules of a case, and returns its flows.
func loadForeign(t *testing.T, node *lab.Host, path, variant string) (archive *txtar.Archive, sends []flows.Flow, golden *txtar.File) {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if last := archive.Files[len(archive.Files)-1]; last.Name != "explain.txt" {
		archive.Files = append(archive.Files, txtar.File{Name: "explain.txt"})
	}
	golden = &archive.Files[len(archive.Files)-1]
	for _, f := range archive.Files {
		var load *exec.Cmd
		switch f.Name {
		case "foreign.nft":
			load = exec.Command("nft", "-f", "-")
		case "foreign.ip.rules":
			load = exec.Command("iptables-" + variant + "-restore")
		case "foreign.ip6.rules":
			load = exec.Command("ip6tables-" + variant + "-restore")
		case "flows.yaml":
			if sends, err = flows.Parse(f.Data); err != nil {
				t.Fatal(err)
			}
		}
		if load != nil {
			load.Stdin = bytes.NewReader(f.Data)
			if p := lab.StartCommand(t, node, load); p.Wait() != nil {
				t.Fatal(p.Output())
			}
			if variant == "legacy" {
				t.Cleanup(func() { resetLegacy(t, node, load.Args[0]) })
			}
		}
	}
	if !lab.HasIPv6 {
		sends = slices.DeleteFunc(sends, func(f flows.Flow) bool { return f.To.Addr().Is6() })
	}
	return archive, sends, golden
}

// resetLegacy removes all rules of iptables-legacy.
func resetLegacy(t *testing.T, node *lab.Host, restore string) {
	const accept = "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n" +
		"*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n*raw\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"
	loadLegacy(t, node, restore, accept)
}

func loadLegacy(t *testing.T, node *lab.Host, restore, rules string) {
	load := exec.Command(restore)
	load.Stdin = strings.NewReader(rules)
	if p := lab.StartCommand(t, node, load); p.Wait() != nil {
		t.Errorf("%.1000s", p.Output())
	}
}

// explainFlow explains the first packet of a flow, on the node and from its dump, and compares the outcome with the
// expected one. It writes down who decided.
func explainFlow(t *testing.T, node *lab.Host, f flows.Flow, dump string, said *strings.Builder) {
	t.Helper()
	args := []string{"explain", "--from=" + f.From.Addr(f.To.Addr()).String(), "--to=" + f.To.String()}
	text := runRuledump(t, node, args...)
	for line := range strings.Lines(text) {
		if decides := !strings.HasPrefix(line, " ") || strings.HasPrefix(line, "  depends on"); decides && line != "\n" && !strings.HasPrefix(line, "tcp ") {
			said.WriteString(line)
		}
	}
	var e verb.Explanation
	if err := json.Unmarshal([]byte(runRuledump(t, node, append(args, "-o=json")...)), &e); err != nil {
		t.Fatal(err)
	}
	fromDump := explainDump(t, dump, args...)
	if diff := cmp.Diff(e.Outcomes, fromDump.Outcomes, cmpopts.IgnoreUnexported(verb.Outcome{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); diff != "" {
		t.Errorf("%s: explain says (-of the kernel +of the dump):\n%s", f.Name, diff)
	}
	var to []netip.AddrPort
	want := explained(f)
	// What depends on the order of chains is one of several.
	byOrder := slices.ContainsFunc(e.Outcomes, func(o verb.Outcome) bool { return o.Result == want && dependsOnOrder(o) })
	for _, o := range e.Outcomes {
		if o.Result != want && !(byOrder && dependsOnOrder(o)) {
			t.Errorf("%s: want %s\n%s", f.Name, want, text)
		}
		if o.Result == "delivered" {
			to = append(to, o.Destinations...)
		}
	}
	slices.SortFunc(to, netip.AddrPort.Compare)
	if diff := cmp.Diff(f.Expect.Endpoints, to, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: endpoints (-want +explained):\n%s", f.Name, diff)
	}
}

func dependsOnOrder(o verb.Outcome) bool {
	return len(o.DependsOn) > 0 && strings.HasPrefix(o.DependsOn[0].Verdict, "if it runs before other tables' chains")
}

// explained is the result of a flow in the words of explain.
func explained(f flows.Flow) string {
	if f.Expect.Result == "" {
		return "delivered"
	}
	return string(f.Expect.Result)
}

func hostOf(l *lab.Lab, from flows.Origin) *lab.Host {
	switch from {
	case flows.FromNode:
		return l.Node
	case flows.FromClient:
		return l.Client
	}
	return l.Outside
}

// What explain cannot follow, it names, from a dump too.
func testExplainNames(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	if err := l.Node.Do(func() error {
		return errors.Join(addMacvlan("eth0", "above"), addBridge("br", "port"), addMacvlan("br", "above-br"), addTCFilter("eth0"))
	}); err != nil {
		t.Fatal(err)
	}
	lab.Nft(t, l.Node, "table netdev n {\n chain in { type filter hook ingress device eth0 priority -500; }\n chain port { type filter hook ingress device port priority 0; }\n}\n"+
		"table bridge b {\n chain c { type filter hook prerouting priority 7; }\n}\n", "-f", "-")
	explain := []string{"explain", "--from=198.51.100.7", "--to=192.0.2.10:80"}
	want := []string{
		"table netdev n, chain in: for packets of above, which pass eth0 too",
		"table netdev n, chain port: for packets of above-br, which pass port too",
		"table bridge b, chain c: for packets of above-br, which pass br too",
		"tc: filters of eth0, ingress",
	}
	text := runRuledump(t, l.Node, explain...)
	if _, named, _ := strings.Cut(text, "\nnot looked at:\n  "); strings.TrimSpace(named) != strings.Join(want, "\n  ") {
		t.Errorf("explain says\n%s", text)
	}
	if diff := cmp.Diff(want, explainDump(t, runRuledump(t, l.Node, "live", "-o=json"), explain...).NotLookedAt); diff != "" {
		t.Errorf("from the dump (-want +got):\n%s", diff)
	}
}

// addTCFilter lets all packets pass that come in by a device.
func addTCFilter(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	at := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	filter := netlink.FilterAttrs{LinkIndex: at.LinkIndex, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL}
	return errors.Join(netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}), netlink.FilterAdd(&netlink.U32{FilterAttrs: filter, ClassId: netlink.MakeHandle(1, 1)}))
}

func addMacvlan(parent, name string) error {
	link, err := netlink.LinkByName(parent)
	if err != nil {
		return err
	}
	return netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: link.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE})
}

// With br_netfilter a bridge sends no packet back to a port without hairpin mode.
func testExplainHairpin(t *testing.T) {
	for _, network := range bridges() {
		l := foreignLab(t, network)
		replace(t, lab.Conn(t, l.Node), exampleTables(t))
		pod, err := l.AddPod("alone", netip.MustParseAddr("10.244.1.9"))
		if err != nil {
			t.Fatal(err)
		}
		lab.ServeTCP(t, pod, "10.244.1.9:8080", lab.Echo)
		lab.Nft(t, l.Node, "table ip hairpin {\n chain c { type nat hook prerouting priority -101; ip daddr 192.0.2.99 dnat to 10.244.1.9; }\n chain m { type nat hook postrouting priority 99; ip saddr 10.244.1.9 ip daddr 10.244.1.9 masquerade; }\n}\n", "-f", "-")
		await.Until(t, "the bridge has learnt the port of the pod", func() error {
			return l.Node.Do(func() error { return knowPorts(t, []*lab.Host{l.Client, l.Client, l.Client, pod}) })
		})
		explain := []string{"explain", "--from=10.244.1.9:40000", "--to=192.0.2.99:8080"}
		for _, on := range []bool{true, false} {
			setHairpin(t, l.Node, on)
			want, result, patience := "to 10.244.1.9:8080, source masqueraded", "delivered", await.Patience
			if network.filtered && !on {
				want, result, patience = "dropped\n  why: dropped by the kernel, not by a rule; bridge: ", "dropped", time.Second
			}
			if text := runRuledump(t, l.Node, explain...); !strings.Contains(text, want) {
				t.Errorf("hairpin mode %v over %s: explain says\n%s", on, network.name, text)
			}
			if o := explainDump(t, runRuledump(t, l.Node, "live", "-o=json"), explain...).Outcomes; len(o) != 1 || o[0].Result != result {
				t.Errorf("hairpin mode %v over %s: from the dump explain says %v", on, network.name, o)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			conn, err := pod.DialContext(ctx, "tcp", "192.0.2.99:8080")
			cancel()
			if (err == nil) != (result == "delivered") {
				t.Errorf("hairpin mode %v over %s: %v", on, network.name, err)
			}
			if err == nil {
				conn.Close()
			}
		}
	}
}

// setHairpin sets hairpin mode of all ports of bridges.
func setHairpin(t *testing.T, node *lab.Host, on bool) {
	t.Helper()
	err := node.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Attrs().MasterIndex != 0 {
				err = errors.Join(err, netlink.LinkSetHairpin(l, on))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// addBridge adds a bridge with a port.
func addBridge(name, port string) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: port, MasterIndex: bridge.Index})
	pair.PeerName = port + "-peer"
	return netlink.LinkAdd(pair)
}

// A rate limit may let a packet pass or not, and explain says that it depends on it.
func testExplainRateLimit(t *testing.T) {
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	pod, err := l.AddPod("web", netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.1.6"))
	if err != nil {
		t.Fatal(err)
	}
	lab.ServeTCP(t, pod, ":8080", lab.Echo)
	lab.Nft(t, l.Node, `table inet fw {
	chain f { type filter hook forward priority 0; policy drop;
		ct state established accept
		limit rate 1/hour burst 1 packets accept
	}
}
`, "-f", "-")
	text := runRuledump(t, l.Node, "explain", "--from=198.51.100.7", "--to=192.0.2.10:80")
	for _, want := range []string{
		"\ndropped by inet fw, chain f (policy drop)\n", "\nto 10.244.1.5:8080 or 10.244.1.6:8080, source kept\n",
		"depends on inet fw, chain f: limit rate 1/hour burst 1 packets accept (if this does not match)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, want := range []string{"delivered", "dropped"} {
		if result := dialled(t, l.Outside, lab.OutsideAddrs.IPv4, netip.MustParseAddrPort("192.0.2.10:80"), want); result != want {
			t.Errorf("the packet was %s, want %s", result, want)
		}
	}
}

// explainDump runs explain on a dump, outside of the node.
func explainDump(t *testing.T, dump string, explain ...string) (e verb.Explanation) {
	t.Helper()
	root := verb.New()
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
	if o := e.Outcomes; len(o) != 2 || len(o[0].DependsOn) != 1 || len(o[1].DependsOn) != 1 || !strings.Contains(o[0].DependsOn[0].Rule, "@large drop") {
		t.Errorf("from the dump: %+v", o)
	}
}

// dialled says what became of a connection. Where silence is wanted it waits less than until the SYN is sent again. Other
// answers may come after that only: an ICMPv6 error during connect(2) does not end it.
func dialled(t *testing.T, host *lab.Host, from netip.Addr, to netip.AddrPort, want string) string {
	t.Helper()
	patience := 20 * time.Second
	if want == "dropped" {
		patience = 400 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
	var conn net.Conn
	err := host.Do(func() (err error) {
		conn, err = dialer.DialContext(ctx, "tcp", to.String())
		return err
	})
	switch {
	case err == nil:
		conn.Close()
		return "delivered"
	case errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil:
		return "dropped"
	}
	return "refused"
}
