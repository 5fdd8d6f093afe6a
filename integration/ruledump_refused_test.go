package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

func TestRuledumpRefused(t *testing.T) {
	t.Run("tells of each client with Service and reason", testRefusedReasons)
	t.Run("tells of the refused golden flows and of no others", testRefusedGoldenFlows)
	t.Run("goes on while other programs commit", testRefusedDuringCommits)
	t.Run("is limited, and leaves nothing after a kill", testRefusedLimit)
}

// refused is a line of ruledump watch --refused.
type refused struct {
	Time                     time.Time
	Result, Reason           string
	Namespace, Service, Port string
	Client, Dialed           netip.AddrPort
	Protocol                 string
	Lost, Limited            bool
}

func (r refused) String() string {
	return fmt.Sprintf("%s %s/%s:%s %s %s", r.Client.Addr(), r.Namespace, r.Service, r.Port, r.Result, r.Reason)
}

func startRefused(t *testing.T, h *lab.Host, args ...string) *lab.Process {
	t.Helper()
	p := lab.Start(t, h, "ruledump", append([]string{"watch", "--refused", "--yes", "-o=json"}, args...)...)
	p.Says(t, "marks packets that will be refused in table ruledump-refused-")
	return p
}

func refusedBy(t *testing.T, p *lab.Process) (all []refused) {
	t.Helper()
	for line := range strings.Lines(p.Output()) {
		if !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "\n") {
			continue
		}
		var one refused
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		all = append(all, one)
	}
	return all
}

func sendOne(to string) error {
	conn, err := net.Dial("udp4", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(echoText))
	return err
}

// A packet that is served, sent last, is not told of; so the lines are all that come.
func testRefusedReasons(t *testing.T) {
	t.Parallel()
	c := newCounting(t)
	client, outside, node := lab.ClientAddrs.IPv4, lab.OutsideAddrs.IPv4, lab.NodeAddrs.IPv4
	all := []string{
		fmt.Sprintf("%s shop/empty:dns refused no-endpoints", client),
		fmt.Sprintf("%s shop/empty:dns refused no-endpoints", node),
		fmt.Sprintf("%s shop/remote:dns dropped policy-local", outside),
		fmt.Sprintf("%s shop/pod:dns dropped source-not-allowed", outside),
		fmt.Sprintf("%s shop/pod: refused unknown-port", client),
		fmt.Sprintf("%s /: dropped unassigned-address", client),
	}
	watches := []struct {
		name string
		args []string
		want []string
		p    *lab.Process
	}{
		{name: "all", want: all},
		{name: "a namespace", args: []string{"-n", "shop"}, want: all[:5]},
		{name: "a Service", args: []string{"shop/pod"}, want: all[3:5]},
		{name: "a client", args: []string{"--from", outside.String()}, want: all[2:4]},
		{name: "a network of clients", args: []string{"--from", "10.244.0.0/16"}, want: []string{all[0], all[4], all[5]}},
		{name: "an address that no Service holds", args: []string{"10.96.0.99"}, want: all[5:]},
	}
	for i := range watches {
		watches[i].p = startRefused(t, c.lab.Node, watches[i].args...)
	}
	refuse := func() {
		send(t, c.lab.Client, "10.96.0.13:53", 1, false)
		// The socket of a process on the node gets the refusal as an error.
		if err := c.lab.Node.Do(func() error { return sendOne("10.96.0.13:53") }); !errors.Is(err, unix.EPERM) {
			t.Errorf("a process of the node was not refused, but: %v", err)
		}
		send(t, c.lab.Outside, "192.168.0.1:30055", 1, false)
		send(t, c.lab.Outside, "192.0.2.20:53", 1, false)
		send(t, c.lab.Client, "10.96.0.10:54", 1, false)
		send(t, c.lab.Client, "10.96.0.99:30053", 1, false)
		send(t, c.lab.Client, "10.96.0.10:53", 3, true)
	}
	told := func(p *lab.Process) (lines []string) {
		for _, r := range refusedBy(t, p) {
			lines = append(lines, r.String())
		}
		slices.Sort(lines)
		return lines
	}
	rounds, sent := 0, time.Time{}
	await.Until(t, "each packet is told of", func() error {
		if time.Since(sent) > await.Patience/4 { // a busy machine may lose one
			refuse()
			rounds, sent = rounds+1, time.Now()
		}
		for _, w := range watches {
			if lines := told(w.p); slices.ContainsFunc(w.want, func(line string) bool { return !slices.Contains(lines, line) }) {
				return fmt.Errorf("to %s: %q", w.name, lines)
			}
		}
		return nil
	})
	for _, w := range watches {
		t.Run(w.name, func(t *testing.T) {
			got := told(w.p)
			if rounds > 1 {
				got = slices.Compact(got)
			}
			want := slices.Clone(w.want)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +told:\n%s", diff)
			}
		})
	}
	t.Run("follows the rules", func(t *testing.T) {
		c.sync(t)
		want := fmt.Sprintf("%s shop/pod:dns refused no-endpoints", client)
		await.Until(t, "a Service that lost its endpoints is told of", func() error {
			send(t, c.lab.Client, "10.96.0.10:53", 1, false)
			if lines := refusedBy(t, watches[2].p); lines[len(lines)-1].String() != want {
				return fmt.Errorf("%v", lines)
			}
			return nil
		})
	})
}

// Of all flows of a case exactly those are told of that the rules refuse or drop. A case takes half a second, so a run
// has every eighth.
func testRefusedGoldenFlows(t *testing.T) {
	l := lab.ForTest(t)
	day := time.Now().YearDay()
	for i, g := range flows.Cases(t) {
		if !*traceAll && i%traceEvery != day%traceEvery || g.Bridge(t) != "" {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			tables := g.Compile(t)
			replace(t, lab.Conn(t, l.Node), tables)
			paper := evaluator.New(tables, flows.NodeUnderTest)
			want, got := map[string]string{}, map[string]string{}
			for _, f := range g.Flows() {
				if f.To.Addr().Is6() && !lab.HasIPv6 || f.Expect.Result != flows.Refused && f.Expect.Result != flows.Dropped {
					continue
				}
				fates, err := paper.Fates(f.Packet(g.PodLink(t)))
				if err != nil {
					t.Fatal(err)
				}
				if slices.ContainsFunc(fates, func(fate evaluator.Fate) bool { return fate.CopyTo.IsValid() }) {
					continue // sent on to a node without rules
				}
				want[fmt.Sprintf("%s %s to %s", f.Protocol, f.From.Addr(f.To.Addr()), f.To)] = string(f.Expect.Result)
			}
			watch := startRefused(t, l.Node, "--limit=2000")
			sendFlows(t, l, g)
			read := func() bool {
				for _, r := range refusedBy(t, watch) {
					if r.Lost || r.Limited {
						t.Fatalf("%+v", r)
					}
					got[fmt.Sprintf("%s %s to %s", strings.TrimSuffix(r.Protocol, "V6"), r.Client.Addr(), r.Dialed)] = r.Result
				}
				return cmp.Equal(want, got)
			}
			for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline) && !read(); {
				time.Sleep(50 * time.Millisecond)
			}
			if err := watch.Stop(t); err != nil {
				t.Fatal(err)
			}
			read()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-refused +told:\n%s", diff)
			}
		})
	}
}

// Commits of others disturb the reading of the rules, but not the tables that mark packets.
func testRefusedDuringCommits(t *testing.T) {
	t.Parallel()
	c := newCounting(t)
	watch := startRefused(t, c.lab.Node)
	conn, table := lab.Conn(t, c.lab.Node), &nft.Table{Family: nft.FamilyIP, Name: "another"}
	commits := 0
	for begin := time.Now(); time.Since(begin) < 4*time.Second; commits++ {
		for _, tx := range []nft.Transaction{nft.Diff(nil, table), nft.Diff(table, nil)} {
			if _, err := conn.Commit(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
		}
	}
	await.Until(t, fmt.Sprintf("a packet is told of after %d commits", commits), func() error {
		send(t, c.lab.Client, "10.96.0.99:53", 1, false)
		if len(refusedBy(t, watch)) == 0 {
			return errors.New(watch.Output())
		}
		return nil
	})
	c.sync(t)
	await.Until(t, "a Service that lost its endpoints is told of", func() error {
		send(t, c.lab.Client, "10.96.0.10:53", 1, false)
		if lines := refusedBy(t, watch); lines[len(lines)-1].Reason != "no-endpoints" {
			return fmt.Errorf("%v", lines)
		}
		return nil
	})
}

// Of a flood a rule marks no more than --limit a second. The table goes with the process, however that ends.
func testRefusedLimit(t *testing.T) {
	t.Parallel()
	c := newCounting(t)
	watch := startRefused(t, c.lab.Node, "--limit=5")
	for range 500 {
		send(t, c.lab.Client, "10.96.0.99:53", 1, false)
	}
	await.Until(t, "it says that there may be more", func() error {
		for _, r := range refusedBy(t, watch) {
			if r.Limited {
				return nil
			}
		}
		return fmt.Errorf("%s", watch.Output())
	})
	if n := len(refusedBy(t, watch)); n > 100 {
		t.Errorf("%d lines for 500 packets", n)
	}
	if err := watch.Cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = watch.Wait()
	await.Until(t, "the kernel has removed the table", func() error {
		if list := lab.Nft(t, c.lab.Node, "", "list", "tables"); strings.Contains(list, "ruledump-refused-") {
			return fmt.Errorf("%s", list)
		}
		return nil
	})
}
