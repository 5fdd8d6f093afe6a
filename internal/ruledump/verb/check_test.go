package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// TestCheckAgrees compares each cell of the matrix of each golden case with what explain says about the same packet.
func TestCheckAgrees(t *testing.T) {
	works, fails := 0, 0
	for _, c := range flows.Cases(t) {
		s, err := ruledump.FromManifests(c.ManifestsDir(t), ruledump.Compilation{Node: lab.NodeName, Config: c.ConfigFile(t), Warn: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		e, err := newCheck(t.Context(), s, Filter{}, func(int, int) {})
		if err != nil {
			t.Fatal(err)
		}
		e.finish()
		for i, f := range e.frontends {
			for j := range e.clients {
				p, applies := e.packet(&e.clients[j], f)
				cell := e.Services[i].Cells[j]
				if !applies || cell == cellUndecided {
					continue
				}
				x, err := Explain(s, p)
				if errors.Is(err, evaluator.UnknownSourcePort) {
					p.Source = netip.AddrPortFrom(p.Source.Addr(), 40000)
					x, err = Explain(s, p)
				}
				if err != nil {
					t.Fatalf("%s: %v", c.Name, err)
				}
				served := !slices.ContainsFunc(x.Outcomes, func(o Outcome) bool { return o.Result != "delivered" && o.Reason != ReasonSentOn })
				if served != (cell == cellWorks) {
					t.Errorf("%s: %s: the cell is %d, and explain says %s", c.Name, x.Packet, cell, TextOf(x, "text"))
				}
				if served {
					works++
				} else {
					fails++
				}
			}
		}
	}
	if works < 500 || fails < 100 {
		t.Errorf("compared %d cells that work and %d that do not", works, fails)
	}
}

func TestCheckTime(t *testing.T) {
	s := manyServices(t, 20, 2)
	for name, tt := range map[string]struct {
		ended bool
		want  verdict
		cell  int
	}{
		"enough":       {false, verdictWorks, cellWorks},
		"none is left": {true, verdictUnknown, cellUndecided},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if tt.ended {
				stop()
			}
			e, err := newCheck(ctx, s, Filter{}, func(int, int) {})
			if err != nil {
				t.Fatal(err)
			}
			c := e.finish()
			if c.Verdict != tt.want || c.Services[0].Cells[0] != tt.cell || (len(c.NotLookedAt) > 0) != tt.ended {
				t.Errorf("%s, cells %v, not looked at %v", c.Verdict, c.Services[0].Cells, c.NotLookedAt)
			}
		})
	}
}

// TestCheckTable reads connection tracking from what a report has of it.
func TestCheckTable(t *testing.T) {
	for name, tt := range map[string]struct {
		entries, counters, want string
	}{
		"full":           {"262144", "entries drop early_drop insert_failed\n00000001 0000000a 00000002 00000001\n00000001 00000006 00000000 00000000\n", "the connection table is full: 262144 of 262144 entries"},
		"was full once":  {"12", "entries drop early_drop insert_failed\n00000001 0000000a 00000002 00000001\n00000001 00000006 00000000 00000000\n", "connection tracking has dropped packets: 16"},
		"has room":       {"12", "entries drop\n00000001 00000000\n", ""},
		"no counters":    {"12", "", ""},
		"hostile counts": {"99999999999999999999999", "drop\nzz\n-1\n", "the connection table is full: 18446744073709551615 of 262144 entries"},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := json.Marshal(Report{Sysctls: map[string]string{"net/netfilter/nf_conntrack_count": tt.entries, "net/netfilter/nf_conntrack_max": "262144"}})
			if err != nil {
				t.Fatal(err)
			}
			s := manyServices(t, 1, 1)
			s.Files = map[string][]byte{"report.json": report, "conntrack-counters.txt": []byte(tt.counters)}
			e := newChecker(s, nil, nil)
			e.addConntrack(t.Context(), &source{dump: "report.tar.gz"})
			c := e.finish()
			got := ""
			if len(c.Findings) > 0 {
				got = c.Findings[0].Cause
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestCheckCollect(t *testing.T) {
	check := func(node string, v verdict, findings ...CheckFinding) string {
		c := Check{nodeDocument: nodeDocument{document: documentOf("Check"), Node: node}, Verdict: v, Findings: findings}
		if v == verdictUnknown {
			c.NotLookedAt = []string{"no answer within 90s"}
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	route := CheckFinding{Level: levelBroken, Cause: "no route to 10.244.2.0/24", Services: []string{"shop/web"}, ServicesTotal: 3, Clients: []string{"pods here"}, More: "ip route"}
	remark := CheckFinding{Level: levelRemark, Cause: "source ranges"}
	file := filepath.Join(t.TempDir(), "answers.json")
	text := "a line of a log\n" + check("node-1", verdictWorks, remark) + check("node-2", verdictBroken, route) + check("node-3", verdictBroken, remark, route) + check("node-4", verdictUnknown)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := execute("check", "--collect", file)
	want := `NODE    VERDICT  BROKEN  REMARKS
node-2  broken   1       0
node-3  broken   1       1
node-4  unknown  0       0
node-1  works    0       1

LEVEL   CAUSE                      NODES              HITS                 FROM       MORE (on the first node)
broken  no route to 10.244.2.0/24  2: node-2, node-3  shop/web and 2 more  pods here  ip route
remark  source ranges              2: node-1, node-3  -                    -

node-4 is not known: no answer within 90s
`
	if status != 1 || stdout != want {
		t.Errorf("status %d, %s\n%s\nwant\n%s", status, stderr, stdout, want)
	}
	for answer, want := range map[string]string{
		"": "it has no output of ruledump check -o json",
		`{"apiVersion": "ruledump.nftproxy/v1", "kind": "Preflight"}`:                                                   "want Check of",
		`{"apiVersion": "ruledump.nftproxy/v1", "kind": "Check", "verdict": "perhaps"}`:                                 `verdict "perhaps" is not known`,
		`{"apiVersion": "ruledump.nftproxy/v1", "kind": "Check", "verdict": "works", "findings": [{"level": "worse"}]}`: `level "worse" is not known`,
	} {
		if err := os.WriteFile(file, []byte(answer), 0o600); err != nil {
			t.Fatal(err)
		}
		if status, _, stderr := execute("check", "--collect", file); status != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %s; want %q", answer, status, stderr, want)
		}
	}
}

// TestCheckProxy reads what a report has of the proxy.
func TestCheckProxy(t *testing.T) {
	for name, tt := range map[string]struct {
		health, metrics, state, cause string
		repairs                       uint64
	}{
		"applied":             {`{"healthy": true, "status": {"IPv4": {"lastUpdated": "2026-11-22T03:00:00Z"}}}`, "kubeproxy_contested_addresses 0\nkubeproxy_nftables_foreign_changes_repaired_total 3\n", proxyApplied, "", 3},
		"not healthy":         {`{"healthy": false, "problems": ["syncs fail"]}`, "", proxyFailing, "the proxy is not healthy", 0},
		"contested addresses": {`{"healthy": true}`, "# HELP\nkubeproxy_contested_addresses 2\n", proxyApplied, "addresses that several Services claim: 2", 0},
		"no JSON":             {"<html>", "", proxyUnknown, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := manyServices(t, 1, 1)
			s.Files = map[string][]byte{"healthz.json": []byte(tt.health), "metrics.txt": []byte(tt.metrics)}
			e := newChecker(s, nil, nil)
			e.addProxy(t.Context(), &source{})
			c, cause := e.finish(), ""
			if len(c.Findings) > 0 {
				cause = c.Findings[0].Cause
			}
			if known := tt.state != proxyUnknown; known != strings.Contains(TextOf(c, "text"), "proxy: "+tt.state) || known != strings.Contains(TextOf(c, "text"), ", says healthz.json of the report") {
				t.Errorf("the text does not say the state and its source:\n%s", TextOf(c, "text"))
			}
			if c.Proxy.State != tt.state || cause != tt.cause || c.Proxy.Repairs != tt.repairs {
				t.Errorf("%+v, %q; want %s, %q", c.Proxy, cause, tt.state, tt.cause)
			}
		})
	}
}

// TestCheckCauses makes more causes than a check keeps.
func TestCheckCauses(t *testing.T) {
	e := newChecker(manyServices(t, 1, 1), nil, nil)
	for i := range 2 * maxCauses {
		e.fact(levelRemark, fmt.Sprint("cause ", i), "", "")
	}
	c := e.finish()
	if last := c.Findings[len(c.Findings)-1]; len(c.Findings) != maxCauses+1 || last.Cause != "causes beyond the first 500" {
		t.Errorf("%d findings, the last %q", len(c.Findings), last.Cause)
	}
}

// TestNetstat reads counters as /proc/net/netstat has them: a line of names before each line of values.
func TestNetstat(t *testing.T) {
	const text = "TcpExt: SyncookiesSent IPReversePathFilter Other\nTcpExt: 1 23 4\nIpExt: InNoRoutes\nIpExt: 7\n"
	for name, want := range map[string]uint64{"IPReversePathFilter": 23, "InNoRoutes": 7, "TcpExt:": 0, "Absent": 0} {
		if got := netstat(text, name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// TestCheckClients finds the kinds of clients of a node by its routes.
func TestCheckClients(t *testing.T) {
	s := manyServices(t, 5, 2)
	var got []string
	for _, k := range newChecker(s, nil, nil).clients {
		got = append(got, k.Name+" "+k.From)
	}
	want := []string{"pods here 10.200.0.1%veth1", "pods elsewhere 10.128.0.1%eth0", "this node 192.168.0.1", "outside by eth0 198.51.100.7%eth0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !newChecker(s, nil, nil).network.isInPods(netip.MustParseAddr("10.200.0.1")) {
		t.Error("the range of pods is not known")
	}
}

// TestCheckMarks changes marks in rules of another program, beside a proxy that masquerades by another bit than the default.
func TestCheckMarks(t *testing.T) {
	c, err := compiler.New(compiler.Config{MasqueradeBit: 20, NodePortAddresses: compiler.NodePortAddresses{Primary: true}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		rule nft.Rule
		want string
	}{
		"sets the bit":                 {nft.NewRule(nft.SetMark(1 << 20)), "inet other f (rule 2) changes the masquerade mark 0x100000"},
		"clears the bit":               {nft.NewRule(nft.FlipMark(3 << 20)), "inet other f (rule 2) changes the masquerade mark 0x100000"},
		"sets the default bit":         {nft.NewRule(nft.SetMark(1 << 14)), ""},
		"compares the bit":             {nft.NewRule(nft.MatchMark(1<<20, 1<<20), nft.SetMark(1<<14)), ""},
		"copies the connection's mark": {nft.NewRule(nft.Assign{To: nft.MetaMark, Value: nft.CTMark}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			other := &nft.Table{Family: nft.FamilyInet, Name: "other", Kernel: &nft.KernelTable{Other: true}, Chains: []*nft.Chain{{
				Name: "f", Type: nft.TypeFilter, Hook: nft.HookForward, Rules: []nft.Rule{nft.NewRule(nft.Counter{}), tt.rule},
			}}}
			s := &ruledump.Snapshot{Tables: c.Tables(), Ordered: append([]*nft.Table{other}, c.Tables()...)}
			e := newChecker(s, nil, nil)
			e.checkMarks()
			got := ""
			for _, f := range e.finish().Findings {
				got = f.Cause
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestCheckStatus sees the exit status of each verdict. Where something is broken, what could not be found out does not count.
func TestCheckStatus(t *testing.T) {
	drop := nft.NewRule(nft.Match{Field: nft.MetaL4proto, Value: nft.ProtoData(unix.IPPROTO_TCP)}, nft.Drop)
	unknown := nft.NewRule(nft.Unknown{Name: "tomorrow"}, nft.Drop)
	rarely := nft.NewRule(nft.Limit{Rate: 1}, nft.Drop)
	for name, tt := range map[string]struct {
		rules  []nft.Rule
		noTime bool
		fact   checkLevel
		want   int
	}{
		"everything works":                            {want: 0},
		"a remark":                                    {fact: levelRemark, want: 0},
		"a rule that may or may not drop":             {rules: []nft.Rule{rarely}, want: 0},
		"a rule drops":                                {rules: []nft.Rule{drop}, want: 1},
		"a setting is wrong":                          {fact: levelBroken, want: 1},
		"a rule of which nobody knows what it does":   {rules: []nft.Rule{unknown}, want: 2},
		"no time":                                     {noTime: true, want: 2},
		"no time, and a remark":                       {noTime: true, fact: levelRemark, want: 2},
		"no time, and a setting is wrong":             {noTime: true, fact: levelBroken, want: 1},
		"a rule nobody knows, and a setting is wrong": {rules: []nft.Rule{unknown}, fact: levelBroken, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := manyServices(t, 5, 2)
			s.Ordered[0].Chains[0].Rules = tt.rules
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if tt.noTime {
				stop()
			}
			e, err := newCheck(ctx, s, Filter{}, func(int, int) {})
			if err != nil {
				t.Fatal(err)
			}
			if tt.fact != "" {
				e.fact(tt.fact, "a cause", "", "")
			}
			c := e.finish()
			file := filepath.Join(t.TempDir(), "check.json")
			if text, err := json.Marshal(c); err != nil || os.WriteFile(file, text, 0o600) != nil {
				t.Fatal(err)
			}
			if got, _, stderr := execute("check", "--collect", file); got != tt.want || stderr != "" {
				t.Errorf("status %d, want %d, %s:\n%s", got, tt.want, stderr, TextOf(c, "text"))
			}
		})
	}
	if status, _, stderr := execute("check", "--dump", filepath.Join(t.TempDir(), "none.json")); status != 2 || stderr == "" {
		t.Errorf("rules that cannot be read: status %d, %q", status, stderr)
	}
}

// TestCheckDial dials the endpoints of each list that a frontend has: those of policy Local are not in the other list.
func TestCheckDial(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	listens, refuses := netip.MustParseAddrPort(open.Addr().String()), netip.MustParseAddrPort(shut.Addr().String())
	of := func(protocol model.Protocol, name string, all, local []netip.AddrPort) *compiler.Frontend {
		return &compiler.Frontend{Protocol: protocol, ServicePort: name, Endpoints: all, LocalEndpoints: local}
	}
	for name, tt := range map[string]struct {
		frontend *compiler.Frontend
		want     string
	}{
		"listens":                  {of(model.TCP, "a/b", []netip.AddrPort{listens}, nil), ""},
		"refuses":                  {of(model.TCP, "a/b", []netip.AddrPort{listens, refuses}, nil), "endpoints refuse connections (wrong port?)"},
		"policy Local listens":     {of(model.TCP, "a/b", nil, []netip.AddrPort{listens}), ""},
		"policy Local refuses":     {of(model.TCP, "a/b", nil, []netip.AddrPort{refuses}), "endpoints refuse connections (wrong port?)"},
		"of UDP nothing is dialed": {of(model.UDP, "a/b", []netip.AddrPort{refuses}, nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newChecker(manyServices(t, 1, 1), nil, []*compiler.Frontend{tt.frontend})
			e.dial(t.Context())
			c := e.Check
			for _, cause := range e.causes {
				c.Findings = append(c.Findings, cause.finding())
			}
			got := ""
			for _, f := range c.Findings {
				if got = f.Cause; !slices.Equal(f.Endpoints, []netip.AddrPort{refuses}) || !slices.Equal(f.Services, []string{"a/b"}) {
					t.Errorf("%+v", f)
				}
			}
			if got != tt.want || len(c.NotLookedAt) > 0 {
				t.Errorf("%q, want %q; not looked at: %v", got, tt.want, c.NotLookedAt)
			}
		})
	}
	t.Run("no time", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		e := newChecker(manyServices(t, 1, 1), nil, []*compiler.Frontend{of(model.TCP, "a/b", []netip.AddrPort{refuses}, nil)})
		e.dial(ctx)
		if len(e.causes) > 0 || e.Verdict != verdictUnknown || len(e.NotLookedAt) != 1 {
			t.Errorf("%s, causes %d, not looked at %v", e.Verdict, len(e.causes), e.NotLookedAt)
		}
	})
}
