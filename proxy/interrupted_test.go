package proxy

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestBackendSyncInterrupted(t *testing.T) {
	t.Run("while it reads the tables, it replaces nothing", testSyncInterruptedWhileReading)
	t.Run("before the commit, it sends nothing", testSyncInterruptedBeforeTheCommit)
}

// A proxy that is told to stop while its first Sync reads the tables must not take that for tables that cannot be read:
// replacing them costs packets, and the clients of session affinity, which cannot be read in time either.
func testSyncInterruptedWhileReading(t *testing.T) {
	changes := manyPorts(10, 1)
	for _, p := range changes.Ports {
		p.AffinityTimeout = time.Hour
	}
	c := namespaceConn(t)
	before, err := NewBackend(c, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := before.Sync(t.Context(), changes); err != nil {
		t.Fatal(err)
	}
	m := before.compiler.Affinity().Maps()[0]
	client := m.Element(netip.MustParseAddr("192.0.2.1"), changes.Ports[m.Port].Cluster[0].AddrPort)
	commit(t, c, nft.Transaction{Steps: []nft.Step{{Op: nft.AddElements, Table: m.Table, Set: m.Set, Elements: []nft.Element{client}}}})
	generation, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	after, err := NewBackend(c, compiler.Default(), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := after.Sync(stopped, changes); err == nil {
		t.Error("a Sync that was interrupted while it read the tables succeeds")
	}
	if now, err := c.Generation(t.Context()); err != nil || now != generation {
		t.Errorf("a Sync that was interrupted while it read the tables committed: generation %d became %d (%v)", generation, now, err)
	}
	if clients, err := readAffinity(t.Context(), c, m); err != nil || len(clients) != 1 {
		t.Errorf("%d clients of session affinity are left (%v), want 1", len(clients), err)
	}
	// Nothing is lost by it.
	if err := after.Sync(t.Context(), &model.Changes{}); err != nil {
		t.Fatal(err)
	}
	compareWithKernel(t, c, after)
}

// A Sync whose context has ended sends nothing to the kernel. So the tables are as before, and need not be reconciled.
func testSyncInterruptedBeforeTheCommit(t *testing.T) {
	c := namespaceConn(t)
	commits := 0
	b, err := NewBackend(c, compiler.Default(), Hooks{
		OnCommit: func(nft.CommitStats) { commits++ },
		OnRepair: func() { t.Error("the tables were reconciled") },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Sync(t.Context(), manyPorts(10, 1)); err != nil {
		t.Fatal(err)
	}
	commits = 0
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := b.Sync(stopped, manyPorts(11, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted Sync returns %v", err)
	}
	if commits != 0 || b.state != stateApplied {
		t.Errorf("after an interrupted Sync: %d commits, state %v", commits, b.state)
	}
	if err := b.Sync(t.Context(), &model.Changes{}); err != nil {
		t.Fatal(err)
	}
	if commits != 1 {
		t.Errorf("the next Sync made %d commits, want 1", commits)
	}
	compareWithKernel(t, c, b)
}
