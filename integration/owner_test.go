package integration

import (
	"context"
	"os/exec"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/tracker"
)

// ownerTest is a node whose proxy may own its tables.
type ownerTest struct {
	*testing.T
	g       flows.Case
	lab     *lab.Lab
	conn    *nft.Conn
	backend *proxy.Backend
}

// restart ends the connection of the process before, and starts the next one.
func (o *ownerTest) restart(own bool) {
	o.Helper()
	if o.conn != nil {
		if err := o.conn.Close(); err != nil {
			o.Fatal(err)
		}
	}
	o.conn = lab.Conn(o, o.lab.Node)
	config := o.g.Config(o)
	config.OwnTables = own
	var err error
	if o.backend, err = proxy.NewBackend(o.conn, config, proxy.Hooks{}); err != nil {
		o.Fatal(err)
	}
	objects := o.g.Objects(o)
	tr := tracker.New(tracker.Options{NodeName: lab.NodeName})
	objects.Feed(tr)
	if err := o.backend.Sync(context.Background(), tr.Changes()); err != nil {
		o.Fatal(err)
	}
	if err := lab.TableError(o.conn, o.backend.Tables()); err != nil {
		o.Fatal(err)
	}
}

// nft runs the nft program as another process, and returns whether it succeeded.
func (o *ownerTest) nft(args ...string) (ok bool) {
	o.Helper()
	err := o.lab.Node.Do(func() error { return exec.Command("nft", args...).Run() })
	return err == nil
}

func (o *ownerTest) handles() string { return lab.Nft(o, o.lab.Node, "", "-a", "list", "tables") }

func TestOwnedTables(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	const name = "hairpin-over-node-port"
	o := &ownerTest{T: t, g: flows.FindCase(t, name), lab: lab.ForTest(t)}
	o.restart(true)
	before := o.handles()
	t.Run("others can neither flush nor change them", func(t *testing.T) {
		if !o.nft("flush", "ruleset") {
			t.Error("nft flush ruleset failed")
		}
		if o.nft("delete", "table", "ip", "kube-proxy") || o.nft("add", "rule", "ip", "kube-proxy", "services", "drop") {
			t.Error("another process changed the table")
		}
		if err := lab.TableError(o.conn, o.backend.Tables()); err != nil {
			t.Error(err)
		}
	})
	t.Run("the next process adopts them as they are", func(t *testing.T) {
		o.restart(true)
		if now := o.handles(); now != before {
			t.Errorf("the tables were replaced: %s, before %s", now, before)
		}
		if o.nft("delete", "table", "ip", "kube-proxy") {
			t.Error("another process deleted the table")
		}
	})
	t.Run("without the gate they have no owner any more", func(t *testing.T) {
		o.restart(false)
		if table, err := o.conn.ReadHeader(t.Context(), nft.FamilyIP, compiler.TableName); err != nil || table.Owner || table.Persist {
			t.Errorf("the table is %+v, %v; want no flags", table, err)
		}
		if !o.nft("flush", "ruleset") || o.nft("list", "table", "ip", "kube-proxy") {
			t.Error("the table is there after nft flush ruleset")
		}
	})
	t.Run("cleanup removes those that a process left", func(t *testing.T) {
		o.restart(true)
		if err := o.conn.Close(); err != nil {
			t.Fatal(err)
		}
		o.conn = lab.Conn(o, o.lab.Node)
		if err := proxy.Cleanup(context.Background(), o.conn, ""); err != nil {
			t.Fatal(err)
		}
		if o.nft("list", "table", "ip", "kube-proxy") {
			t.Error("the table is still there")
		}
	})
}
