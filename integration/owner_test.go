package integration

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
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

// Two proxies run on one node, as after somebody has deployed two DaemonSets.
func TestTwoProxies(t *testing.T) {
	t.Run("that want the same apply changes together", testTwoProxiesThatWantTheSame)
	t.Run("that differ back off", testTwoProxiesThatDiffer)
}

// contestLine is the log line of a proxy that backs off because another program undoes its repairs.
const contestLine = "Another program keeps changing the proxy's tables; comparing less often. Does a second proxy run on this node?"

// startSecond starts a second proxy, with ports of its own.
func (f *withServer) startSecond(t *testing.T, args ...string) *lab.Process {
	t.Helper()
	return f.start(t, append(args, "--kubeconfig="+f.kubeconfig, "--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249")...)
}

func testTwoProxiesThatWantTheSame(t *testing.T) {
	f := newWithServer(t)
	first := f.start(t, "--kubeconfig="+f.kubeconfig)
	second := f.startSecond(t)
	second.Says(t, firstSyncLine)
	f.createFaultService(t)
	f.reaches(t, "first")
	time.Sleep(2 * time.Second) // each may have repaired what the other knew first
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	f.moveFaultService(t, "10.244.1.6")
	f.reaches(t, "second")
	time.Sleep(time.Second)
	stop()
	f.reaches(t, "second")
	f.agree(t)
	f.becomes(t, "200 200")
	// What both delete is gone for the second.
	f.deleteFaultService(t)
	await.Until(t, "the Service is gone", func() error {
		if strings.Contains(lab.Nft(t, f.lab.Node, "", "list", "table", "ip", "kube-proxy"), faultAddress) {
			return errors.New("its address is there")
		}
		return nil
	})
	f.agree(t)
	f.becomes(t, "200 200")
	for _, p := range []*lab.Process{first, second} {
		if log := p.Output(); strings.Contains(log, contestLine) {
			t.Errorf("the two repaired each other's tables until one backed off:\n%s", log)
		}
	}
}

// agree waits until nobody has committed for three seconds: each of the proxies asks for the generation all the time, and
// may put a comparison off for a while.
func (f *withServer) agree(t *testing.T) {
	t.Helper()
	c := lab.Conn(t, f.lab.Node)
	last, since := generation(t, c), time.Now()
	await.Until(t, "nobody changes the tables any more", func() error {
		if now := generation(t, c); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 3*time.Second {
			return fmt.Errorf("generation %d came %v ago", last, quiet)
		}
		return nil
	})
}

func testTwoProxiesThatDiffer(t *testing.T) {
	f := newWithServer(t)
	f.createFaultService(t)
	first := f.start(t, "--kubeconfig="+f.kubeconfig)
	f.reaches(t, "first")
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	second := f.startSecond(t, "--masquerade-all")
	first.Says(t, contestLine)
	if log, want := first.Output(), `remedy="ruledump watch names the program at its next change"`; !strings.Contains(log, want) {
		t.Errorf("the log does not have %q:\n%s", want, log)
	}
	began, before := time.Now(), process.ProcessorTimeOf(t, first.Cmd.Process.Pid)
	time.Sleep(3 * time.Second)
	if used, took := process.ProcessorTimeOf(t, first.Cmd.Process.Pid)-before, time.Since(began); used > took/5 {
		t.Errorf("the first proxy used %v of the processor in %v; see contest", used, took)
	}
	stop()
	if err := second.Stop(t); err != nil {
		t.Error(err)
	}
	await.Until(t, "the first proxy has its rules back", func() error {
		if !strings.Contains(lab.Nft(t, f.lab.Node, "", "list", "table", "ip", "kube-proxy"), "ip saddr != 10.244.0.0/16 meta mark set") {
			return errors.New("the other's are there")
		}
		return nil
	})
}
