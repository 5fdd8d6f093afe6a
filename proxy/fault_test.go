package proxy

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

var everyCall = flag.Bool("every-call", false, "have each fault strike each system call in turn, not one at random")

// usualCalls is the approximate number of system calls of one kind in a case.
const usualCalls = 30

// faultCase is an action of a backend during which netlink goes wrong.
type faultCase struct {
	name string
	// prepare does all that comes before the action.
	prepare func(t *testing.T, n *node)
	// act does the action.
	act func(ctx context.Context, n *node) error
	// atomic says that one commit does it, so that the kernel has the tables of before or of afterwards.
	atomic bool
}

// node is a backend, its connection, and what it is to have.
type node struct {
	// others is a connection of somebody else in the namespace.
	others    *nft.Conn
	namespace int
	conn      *nft.Conn
	backend   *Backend
	wanted    *model.Changes
}

func (n *node) close() {
	if n.backend != nil {
		n.backend.Close()
	}
	if n.conn != nil {
		n.conn.Close()
	}
	n.conn, n.backend = nil, nil
}

// open makes what is not there: the connection, the backend.
func (n *node) open() (err error) {
	if n.conn == nil {
		if n.conn, err = nft.Dial(nft.Config{NetNS: n.namespace}); err != nil {
			return err
		}
	}
	if n.backend == nil {
		n.backend, err = NewBackend(n.conn, compiler.Default(), Hooks{})
	}
	return err
}

// varied is some Services of many kinds; version changes some of them.
func varied(version byte) *model.Changes {
	changes := manyPorts(3, version)
	for _, p := range changes.Ports {
		p.AffinityTimeout = time.Hour
		p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(len(p.ID.Service)) + p.ClusterIP.As4()[2]})}
	}
	more := manyPorts(6, version)
	for id, p := range more.Ports {
		if changes.Ports[id] == nil {
			if version%2 == 0 {
				p.Cluster = p.Cluster[:1]
			}
			changes.Ports[id] = p
		}
	}
	guarded := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: "guarded", Protocol: model.TCP, Family: model.IPv6},
		ClusterIP: netip.MustParseAddr("fd60::1"), Port: 80,
		LoadBalancerIPs:          []netip.Addr{netip.MustParseAddr("2001:db8::1")},
		LoadBalancerSourceRanges: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/48", version))},
		Cluster:                  []model.Endpoint{{AddrPort: netip.AddrPortFrom(netip.MustParseAddr("fd44::1"), 8080)}},
	}
	changes.Ports[guarded.ID] = guarded
	return changes
}

// run has a backend commit one version, and want another.
func (n *node) run(t *testing.T, have, want byte) {
	t.Helper()
	n.wanted = varied(have)
	if err := start(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.wanted = varied(want)
}

func syncWanted(ctx context.Context, n *node) error { return n.backend.Sync(ctx, n.wanted) }

func start(ctx context.Context, n *node) error {
	if err := n.open(); err != nil {
		return err
	}
	return syncWanted(ctx, n)
}

func check(ctx context.Context, n *node) error {
	_, err := n.backend.Check(ctx)
	return err
}

var faultCases = []faultCase{
	{"a first start", func(*testing.T, *node) {}, start, true},
	{"a restart over other rules", func(t *testing.T, n *node) {
		n.run(t, 1, 2)
		n.close()
	}, start, true},
	{"a Sync", func(t *testing.T, n *node) { n.run(t, 1, 2) }, syncWanted, true},
	{"a repair of an element", func(t *testing.T, n *node) {
		n.run(t, 1, 1)
		commit(t, n.others, foreignElement(n.backend, 1))
	}, check, true},
	{"a repair after a flush", func(t *testing.T, n *node) {
		n.run(t, 1, 1)
		commit(t, n.others, nft.Remove(nft.FamilyIP, compiler.TableName))
		commit(t, n.others, nft.Remove(nft.FamilyIP6, compiler.TableName))
	}, check, true},
	{"a takeover of another program's tables", func(t *testing.T, n *node) {
		for _, f := range nft.Families {
			commit(t, n.others, nft.Replace(&nft.Table{Family: f, Name: compiler.TableName, Chains: []*nft.Chain{
				{Name: "service-ips", Type: nft.TypeFilter, Hook: nft.HookInput},
			}}))
		}
	}, start, false},
}

// TestBackendNetlinkFaults has each netlink system call of each thing that a backend does go wrong in each way. The
// kernel then has the tables of before or those of afterwards. The next try, without a fault, gets everything
// right: it loses no change and leaves nothing open.
func TestBackendNetlinkFaults(t *testing.T) {
	await.NoLeaks(t)
	for i, tc := range faultCases {
		t.Run(tc.name, func(t *testing.T) {
			for j, fault := range process.NetlinkFaults() {
				t.Run(fault.Name, func(t *testing.T) {
					ns := netns.ForTest(t)
					if *everyCall {
						for at := 1; tc.survives(t, ns, fault, at); at++ {
						}
					} else if (i+j)%2 == rand.IntN(2) {
						tc.survives(t, ns, fault, 1+rand.IntN(usualCalls))
					}
				})
			}
		})
	}
}

// survives reports whether the fault came about at the n-th call.
func (tc *faultCase) survives(t *testing.T, ns *netns.Namespace, fault process.NetlinkFault, at int) (struck bool) {
	t.Helper()
	others, err := nft.Dial(nft.Config{NetNS: ns.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	n := &node{others: others, namespace: ns.FD(), wanted: varied(1)}
	defer n.close()
	if err := Cleanup(t.Context(), others, ""); err != nil {
		t.Fatal(err)
	}
	tc.prepare(t, n)
	before := held(t, others)

	var failed error
	struck, err = fault.Run(at, func() {
		if failed = unix.Setns(ns.FD(), unix.CLONE_NEWNET); failed == nil {
			failed = tc.act(t.Context(), n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	where := fmt.Sprintf("with %q at call %d, which ended with %v", fault.Name, at, failed)
	switch now := held(t, others); {
	case failed == nil && now != n.printed():
		t.Fatalf("%s: the kernel does not hold what is wanted (-wanted +held):\n%s", where, cmp.Diff(n.printed(), now))
	case tc.atomic && now != before && now != n.printed():
		t.Fatalf("%s: the kernel holds neither the tables of before nor those of afterwards (-wanted +held):\n%s", where, cmp.Diff(n.printed(), now))
	}

	if err := tc.act(t.Context(), n); err != nil {
		t.Fatalf("%s: the next try fails too: %v", where, err)
	}
	if now := held(t, others); now != n.printed() {
		t.Fatalf("%s: after the next try the kernel does not hold what is wanted (-wanted +held):\n%s", where, cmp.Diff(n.printed(), now))
	}
	return struck
}

// printed returns the tables that the backend wants, as text; empty without a backend.
func (n *node) printed() string {
	if n.backend == nil {
		return ""
	}
	return printed(n.backend.Tables()...)
}

// held returns the tables that the kernel has, as text, temporary tables included.
func held(t *testing.T, c *nft.Conn) string {
	t.Helper()
	var tables []*nft.Table
	for _, name := range []string{compiler.TableName, compiler.TemporaryName} {
		for _, f := range nft.Families {
			table, err := c.ReadTable(t.Context(), f, name)
			if err != nil {
				t.Fatal(err)
			}
			if table != nil {
				tables = append(tables, table)
			}
		}
	}
	return printed(tables...)
}

// One refusal of a batch does not fail a Sync. The tables are right at its end, not only after the next one.
func TestBackendSyncRefusedOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		// before has the backend do its work before the Sync.
		before func(t *testing.T, n *node)
	}{
		{"after a refused change it commits the difference", func(t *testing.T, n *node) { n.run(t, 1, 2) }},
		{"after a refused difference it replaces the tables", func(t *testing.T, n *node) {
			n.run(t, 1, 2)
			n.close()
			if err := n.open(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &node{namespace: netns.ForTest(t).FD()}
			defer n.close()
			tc.before(t, n)
			var failed error
			struck, err := process.RefusedStep(unix.ENOMEM).Run(1, func() { failed = syncWanted(t.Context(), n) })
			if err != nil || !struck || failed != nil {
				t.Errorf("Sync = %v; struck: %v, %v", failed, struck, err)
			}
			compareWithKernel(t, n.conn, n.backend)
		})
	}
}

// Replacing tables costs packets that are on their way. One failure is no reason for it.
func TestBackendReading(t *testing.T) {
	t.Run("that fails once is tried again", testReadingThatFailsOnceIsTriedAgain)
}

func testReadingThatFailsOnceIsTriedAgain(t *testing.T) {
	n := &node{namespace: netns.ForTest(t).FD()}
	n.run(t, 1, 2)
	n.close()
	if err := n.open(); err != nil {
		t.Fatal(err)
	}
	defer n.close()
	written := 0
	n.backend.hooks.OnCommit = func(stats nft.CommitStats) { written += stats.Chains }
	var failed error
	struck, err := process.Fails("cannot receive", unix.SYS_RECVMSG, unix.ENOBUFS).Run(5, func() {
		failed = syncWanted(t.Context(), n)
	})
	if err != nil || !struck || failed != nil {
		t.Errorf("Sync = %v; struck: %v, %v", failed, struck, err)
	}
	all := 0
	for _, table := range n.backend.Tables() {
		all += len(table.Chains)
	}
	if written >= all {
		t.Errorf("%d chains of %d were written: the tables were replaced; see Backend.reconcileTables", written, all)
	}
}
