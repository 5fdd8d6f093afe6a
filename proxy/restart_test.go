package proxy

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// A restart commits the difference only.
func TestBackendRestartWithManyEndpoints(t *testing.T) {
	c := cluster{services: 300, endpoints: 50}
	conn := namespaceConn(t)
	more := cluster{services: c.services + 3, endpoints: c.endpoints}
	before := more.changes()
	maps.Copy(before.Ports, c.changed().Ports)
	start := func(changes *model.Changes) (b *Backend, elements int) {
		b, err := NewBackend(conn, c.config(), Hooks{OnCommit: func(s nft.CommitStats) { elements += s.Elements }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
		return b, elements
	}
	start(before)
	after, elements := start(c.changes())
	compareWithKernel(t, conn, after)
	// Of the 3 Services that changed, one has all endpoints in another slot.
	if elements == 0 || elements > 500 {
		t.Errorf("the restart added and deleted %d elements", elements)
	}
}

// A restart replaces large maps of endpoints in one commit, whatever they held. What packets have added stays.
func TestBackendRestartRefills(t *testing.T) {
	conn, c, sticky := namespaceConn(t), cluster{services: 30, endpoints: 10}, stickyPort("s", 1, 2)
	var commits, elements int
	start := func(changes *model.Changes) *Backend {
		b, err := NewBackend(conn, c.config(), Hooks{OnCommit: func(s nft.CommitStats) { commits, elements = commits+1, elements+s.Elements }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		b.refillFrom = 100
		changes.Ports[sticky.ID] = sticky
		commits, elements = 0, 0
		if err := b.Sync(t.Context(), changes); err != nil {
			t.Fatal(err)
		}
		return b
	}
	before := start(c.changed())
	clients := mapOf(t, before, sticky)
	putClients(t, conn, clients, 5, 1)
	table := before.Tables()[0]
	endpoints := table.Set(compiler.Endpoints)
	held := endpoints.Elements()
	foreign := held[0]
	foreign.Key = foreign.Key[:len(foreign.Key)-4] + nft.IntegerData(4711)
	commit(t, conn, nft.Transaction{Steps: []nft.Step{
		{Op: nft.DeleteElements, Table: table, Set: endpoints, Elements: held[1:2]},
		{Op: nft.AddElements, Table: table, Set: endpoints, Elements: []nft.Element{foreign}},
	}})

	after := start(c.changes())
	if wanted := c.services * c.endpoints; commits != 1 || elements < wanted {
		t.Errorf("the restart made %d commits with %d elements, want 1 with %d or more", commits, elements, wanted)
	}
	compareWithKernel(t, conn, after)
	if n := len(clientsIn(t, conn, clients)); n != 5 {
		t.Errorf("%d clients of session affinity are left, want 5", n)
	}
	commit(t, conn, nft.Replace(&nft.Table{Family: nft.FamilyIP, Name: "theirs"})) // so that the check compares
	if repaired, err := after.Check(t.Context()); repaired || err != nil {
		t.Errorf("the check after the restart repaired the tables: %v, %v", repaired, err)
	}
}

// commitElsewhere commits to another table, again and again, until the returned function is called.
func commitElsewhere(t *testing.T, conn *nft.Conn) (stop func()) {
	t.Helper()
	others, err := conn.Another()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var busy sync.WaitGroup
	busy.Go(func() {
		defer others.Close()
		for ctx.Err() == nil {
			if _, err := others.Commit(context.Background(), nft.Replace(&nft.Table{Family: nft.FamilyIP, Name: "theirs"})); err != nil {
				t.Error(err)
			}
		}
	})
	return func() {
		cancel()
		busy.Wait()
	}
}

// Another program that commits to tables of its own all the time must not make a restart replace the tables.
func TestBackendRestartBesideOtherCommits(t *testing.T) {
	c := cluster{services: 4_000, endpoints: 2}
	for name, tc := range map[string]struct {
		before *model.Changes
		// least and most bound the elements that the restart adds and deletes.
		least, most int
	}{
		"sends nothing if nothing changed": {c.changes(), 0, 0},
		"sends the difference":             {c.changed(), 40, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			conn := namespaceConn(t)
			elements := 0
			start := func(changes *model.Changes, hooks Hooks) *Backend {
				b, err := NewBackend(conn, c.config(), hooks)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { b.Close() })
				if err := b.Sync(t.Context(), changes); err != nil {
					t.Fatal(err)
				}
				return b
			}
			start(tc.before, Hooks{})
			stop := commitElsewhere(t, conn)
			defer stop()
			b := start(c.changes(), Hooks{OnCommit: func(s nft.CommitStats) { elements += s.Elements }})
			stop()
			if elements < tc.least || elements > tc.most {
				t.Errorf("the restart added and deleted %d elements, want %d to %d", elements, tc.least, tc.most)
			}
			compareWithKernel(t, conn, b)
		})
	}
}
