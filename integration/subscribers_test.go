package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// While a socket of any network namespace is in the group of nftables' commits, the kernel describes each element of each
// commit in all of them.
func TestSubscribers(t *testing.T) {
	t.Run("of commits are none of our processes but ruledump watch", testNobodySubscribes)
	t.Run("none are needed by a proxy beside a large commit in another namespace", testCommitInAnotherNamespace)
}

// subscribers counts the sockets in a host's namespace that are in the group NFNLGRP_NFTABLES.
func subscribers(h *lab.Host) (n int, err error) {
	err = h.Do(func() error {
		list, err := os.ReadFile("/proc/thread-self/net/netlink") // /proc/net is of the process's first thread
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(list)) {
			const protocol, groups = 1, 3
			fields := strings.Fields(line)
			if len(fields) <= groups || fields[protocol] != strconv.Itoa(unix.NETLINK_NETFILTER) {
				continue
			}
			mask, err := strconv.ParseUint(fields[groups], 16, 32)
			if err != nil {
				return err
			}
			if mask&(1<<(unix.NFNLGRP_NFTABLES-1)) != 0 {
				n++
			}
		}
		return nil
	})
	return n, err
}

// mostSubscribers looks at a host all the time, and returns a function that ends it and returns the largest number.
func mostSubscribers(t *testing.T, h *lab.Host) (end func() int) {
	var stop atomic.Bool
	most, failed := 0, make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil && !stop.Load(); time.Sleep(time.Millisecond) {
			n, err = subscribers(h)
			most = max(most, n)
		}
		failed <- err
	}()
	return func() int {
		t.Helper()
		stop.Store(true)
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		return most
	}
}

func testNobodySubscribes(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	end := mostSubscribers(t, l.Node)
	socket := "unix://" + private.Dir(t) + "/node-local.sock"
	lab.Start(t, l.Node, "kube-proxy", "node-local-server", "--manifests", g.ManifestsDir(t), "--listen", socket).Says(t, "Serving the node-local API")
	p := lab.Start(t, l.Node, "kube-proxy", "--node-local-source", socket, "--hostname-override", lab.NodeName,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--metrics-bind-address=")
	want := g.Compile(t)
	await.Until(t, "the case's rules are in the kernel", func() error { return lab.TableError(c, want) })
	for _, command := range [][]string{{"top", "--rounds=2"}, {"trace", "--yes", "--to=10.96.0.10:80", "--for=1s"}, {"watch", "--refused", "--yes", "--for=1s"}, {"stats"}, {"live"}, {"preflight"}} {
		if err := lab.Start(t, l.Node, "ruledump", command...).Wait(); err != nil {
			t.Logf("ruledump %s: %v", command[0], err)
		}
	}
	lab.Nft(t, l.Node, "", "flush", "ruleset")
	await.Until(t, "the rules are back", func() error { return lab.TableError(c, want) })
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
	if err := lab.Start(t, l.Node, "kube-proxy", "--cleanup").Wait(); err != nil {
		t.Error(err)
	}
	if n := end(); n != 0 {
		t.Errorf("%d sockets were in the group of commits", n)
	}

	end = mostSubscribers(t, l.Node)
	watch := lab.Start(t, l.Node, "ruledump", "watch")
	watch.Says(t, watchCost)
	await.Until(t, "ruledump watch is seen", func() error {
		if n, err := subscribers(l.Node); n != 1 || err != nil {
			return fmt.Errorf("%d sockets are in the group of commits: %v", n, err)
		}
		return nil
	})
	_ = watch.Stop(t)
	if n := end(); n != 1 {
		t.Errorf("beside ruledump watch, %d sockets were in the group of commits; want 1", n)
	}
}

// addressSet is a table with a set of n addresses.
func addressSet(n int) *nft.Table {
	s := &nft.Set{Name: "blocked", Key: nft.Concat{nft.IPSaddr}}
	for i := range n {
		s.Put(nft.Element{Key: nft.Data([]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
	}
	return &nft.Table{Family: nft.FamilyIP, Name: "theirs", Sets: []*nft.Set{s}}
}

// unreclaimable returns the kernel's memory that it cannot reclaim, in bytes.
func unreclaimable(t *testing.T) int {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(info, []byte("SUnreclaim:"))
	kB, err := strconv.Atoi(strings.Fields(string(after))[0])
	if err != nil {
		t.Fatal(err)
	}
	return kB << 10
}

// memoryOfCommit commits a set of n elements in a namespace of its own, and returns the greatest growth of the kernel's
// memory meanwhile, in bytes for each element.
func memoryOfCommit(t *testing.T, n int) int {
	t.Helper()
	c, err := nft.Dial(nft.Config{NetNS: netns.ForTest(t).FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tx := nft.Diff(nil, addressSet(n))
	committed := make(chan error, 1)
	least := unreclaimable(t)
	growth := 0
	go func() {
		_, err := c.Commit(t.Context(), tx)
		committed <- err
	}()
	for {
		select {
		case err := <-committed:
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Commit(t.Context(), nft.Remove(nft.FamilyIP, "theirs")); err != nil {
				t.Fatal(err)
			}
			return growth / n
		case <-time.After(time.Millisecond):
			now := unreclaimable(t)
			least, growth = min(least, now), max(growth, now-least)
		}
	}
}

// A firewall in one namespace loads a large set, beside a proxy in another one. What other programs on the machine do
// disturbs single measurements, and a subscriber of theirs too. So one that is as it must be is enough.
func testCommitInAnotherNamespace(t *testing.T) {
	g := flows.FindCase(t, "cluster-ip-spreads-over-all-endpoints")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	lab.Start(t, l.Node, "kube-proxy", "--manifests", g.ManifestsDir(t), "--hostname-override", lab.NodeName, "--metrics-bind-address=").Says(t, firstSyncLine)
	if there, err := c.HasTable(t.Context(), nft.FamilyIP, compiler.TableName); !there || err != nil {
		t.Fatalf("the proxy's table is there: %v, %v", there, err)
	}
	// A description takes 8 KB.
	const limit = 4000
	watch := lab.Start(t, l.Node, "ruledump", "watch")
	watch.Says(t, watchCost)
	await.Within(t, 3*await.Patience, "the measurement sees a subscriber in another namespace", func() error {
		if got := memoryOfCommit(t, 50_000); got < limit {
			return fmt.Errorf("each element took %d bytes of the kernel's memory", got)
		} else {
			t.Logf("beside a subscriber: %d bytes for each element", got)
		}
		return nil
	})
	_ = watch.Stop(t)
	await.Within(t, 3*await.Patience, "a commit beside a proxy in another namespace takes no memory for descriptions", func() error {
		got := memoryOfCommit(t, 200_000)
		if got == 0 {
			return errors.New("nothing was measured")
		}
		if got > limit {
			return fmt.Errorf("each element took %d bytes of the kernel's memory", got)
		}
		t.Logf("beside a proxy: %d bytes for each element", got)
		return nil
	})
}
