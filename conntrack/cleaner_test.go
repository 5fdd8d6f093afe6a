package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/model"
	trackedby "github.com/ti-mo/conntrack"
	routes "github.com/vishvananda/netlink"
	vishvananda "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/textlogger"
)

// search is the result of one search of the connection tracking table.
type search struct {
	family model.Family
	stats  Stats
	err    error
	at     time.Time
}

// cleaning is a Cleaner in a network namespace of the test's own.
type cleaning struct {
	*testing.T
	rules *compiler.Compiler
	flows *Cleaner
	table *trackedby.Conn
	// namespace is the namespace, used a descriptor for it that the Cleaner has.
	namespace, used int
	searches        chan search
	log             *await.Buffer
}

func newCleaning(t *testing.T) *cleaning {
	t.Helper()
	c := &cleaning{T: t, searches: make(chan search, 1000), log: &await.Buffer{}}
	c.namespace = netns.ForTest(t).FD()
	var err error
	if c.used, err = unix.FcntlInt(uintptr(c.namespace), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(c.used) })
	if c.table, err = trackedby.Dial(&netlink.Config{NetNS: c.namespace}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.table.Close() })
	if c.rules, err = compiler.New(compiler.Default()); err != nil {
		t.Fatal(err)
	}
	c.flows, err = NewCleaner(CleanerOptions{
		NetNS:    c.used,
		Logger:   textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(c.log))),
		OnSearch: func(f model.Family, s Stats, err error) { c.searches <- search{f, s, err, time.Now()} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unlistable makes every search fail, as one that is not allowed does, until listable.
func (c *cleaning) unlistable() {
	c.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		c.Fatal(err)
	}
	defer null.Close()
	c.use(int(null.Fd()))
}

func (c *cleaning) listable() { c.use(c.namespace) }

func (c *cleaning) use(fd int) {
	c.Helper()
	if err := unix.Dup3(fd, c.used, unix.O_CLOEXEC); err != nil {
		c.Fatal(err)
	}
}

// run runs the Cleaner until the test ends.
func (c *cleaning) run() {
	ctx, cancel := context.WithCancel(c.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.flows.Run(ctx)
	}()
	c.Cleanup(func() {
		cancel()
		select {
		case <-stopped:
		case <-time.After(10 * time.Second):
			c.Error("Run does not end with its context")
		}
	})
}

// sync applies the changes and notes them, and fails when that takes long.
func (c *cleaning) sync(changes *model.Changes) {
	c.Helper()
	begin := time.Now()
	c.rules.Apply(changes)
	c.flows.Note(c.rules, changes)
	if took := time.Since(begin); took > 5*time.Second {
		c.Errorf("a Sync took %v", took)
	}
}

func (c *cleaning) add(f Flow) {
	c.Helper()
	add(c.T, c.table, f)
}

func (c *cleaning) held() int {
	c.Helper()
	entries, err := c.table.Dump(nil)
	if err != nil {
		c.Fatal(err)
	}
	return len(entries)
}

// next returns the next search.
func (c *cleaning) next() search {
	c.Helper()
	select {
	case s := <-c.searches:
		return s
	case <-time.After(10 * time.Second):
		c.Fatal("nothing was searched for 10 s")
		return search{}
	}
}

func TestCleaner(t *testing.T) {
	t.Run("Clean removes what a Sync made stale", func(t *testing.T) {
		c := newCleaning(t)
		c.sync(started(changed(udpPort("dns", 0, endpointA))))
		if err := c.flows.Clean(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.add(udpFlow("10.96.0.1:53", endpointA))
		c.sync(changed(udpPort("dns", 0, endpointB)))
		if n := c.held(); n != 1 {
			t.Fatalf("%d entries before Clean, want 1", n)
		}
		if err := c.flows.Clean(t.Context()); err != nil || c.held() != 0 {
			t.Errorf("%d entries are left, %v", c.held(), err)
		}
	})
	t.Run("Clean searches only for what is pending", func(t *testing.T) {
		c := newCleaning(t)
		c.sync(started(changed(udpPort("dns", 0, endpointA))))
		for range 3 {
			if err := c.flows.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(c.searches); n != 1 {
			t.Errorf("%d searches, want 1: one family, once", n)
		}
	})
	t.Run("Run removes what a Sync made stale", func(t *testing.T) {
		c := newCleaning(t)
		c.add(udpFlow("10.96.0.1:53", endpointA))
		c.run()
		c.sync(started(changed(udpPort("dns", 0, endpointB))))
		if s := c.next(); s.err != nil || s.family != model.IPv4 || s.stats.Deleted != 1 {
			t.Errorf("%+v, want one entry deleted", s)
		}
	})
	t.Run("many Syncs during a search are one search more", func(t *testing.T) {
		c := newCleaning(t)
		release := make(chan struct{})
		tell := c.flows.options.OnSearch
		c.flows.options.OnSearch = func(f model.Family, s Stats, err error) {
			tell(f, s, err)
			<-release
		}
		c.run()
		c.sync(started(changed(udpPort("dns", 0, endpointA))))
		c.next() // and its search does not end
		for i := range 50 {
			c.sync(changed(udpPort("dns", 0, fmt.Sprintf("10.244.1.%d:5353", 10+i))))
		}
		close(release)
		c.next()
		time.Sleep(300 * time.Millisecond)
		if n := len(c.searches); n != 0 {
			t.Errorf("%d searches more, want none", n)
		}
	})
}

func TestCleanerFailures(t *testing.T) {
	t.Run("a table that cannot be listed fails no Sync and is tried again, less and less often", func(t *testing.T) {
		c := newCleaning(t)
		c.unlistable()
		c.run()
		begin := time.Now()
		c.sync(started(changed(udpPort("dns", 0, endpointB))))
		var failed []time.Duration
		for range 4 {
			s := c.next()
			if s.err == nil {
				t.Fatalf("a search succeeded: %+v", s)
			}
			failed = append(failed, s.at.Sub(begin).Round(time.Millisecond))
		}
		// The waits are 100, 200 and 400 ms.
		if failed[3] < 700*time.Millisecond || slices.ContainsFunc([]int{1, 2, 3}, func(i int) bool { return failed[i]-failed[i-1] < 100*time.Millisecond<<(i-1) }) {
			t.Errorf("searches failed after %v", failed)
		}
		if n := strings.Count(c.log.String(), "Cannot remove all stale UDP flows"); n != 1 {
			t.Errorf("the failure is logged %d times, want once", n)
		}

		c.add(udpFlow("10.96.0.1:53", endpointA))
		c.listable()
		for s := c.next(); s.err != nil; {
			s = c.next()
		}
		if n := c.held(); n != 0 {
			t.Errorf("%d entries are left when the table can be listed again", n)
		}
		await.True(t, "the end of the failures is logged", func() bool {
			return strings.Count(c.log.String(), "can be removed again") == 1
		})
	})
	t.Run("new changes do not wait for the back-off", func(t *testing.T) {
		c := newCleaning(t)
		c.unlistable()
		c.run()
		c.sync(started(changed(udpPort("dns", 0, endpointA))))
		for range 6 {
			c.next()
		}
		// The next try comes in 3.2 s.
		c.listable()
		begin := time.Now()
		c.sync(changed(udpPort("dns", 0, endpointB)))
		if s := c.next(); s.err != nil || s.at.Sub(begin) > 2500*time.Millisecond {
			t.Errorf("searched after %v, %v", s.at.Sub(begin), s.err)
		}
	})
	t.Run("Clean returns the failure and tries again the next time", func(t *testing.T) {
		c := newCleaning(t)
		c.add(udpFlow("10.96.0.1:53", endpointA))
		c.sync(started(changed(udpPort("dns", 0, endpointB))))
		c.unlistable()
		if err := c.flows.Clean(t.Context()); err == nil {
			t.Fatal("Clean returned no error")
		}
		c.listable()
		if err := c.flows.Clean(t.Context()); err != nil || c.held() != 0 {
			t.Errorf("%d entries are left, %v", c.held(), err)
		}
	})
	t.Run("Clean ends with its context", func(t *testing.T) {
		c := newCleaning(t)
		c.sync(started(changed(udpPort("dns", 0, endpointB))))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.flows.Clean(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %v", err, context.Canceled)
		}
	})
	t.Run("a namespace that is not open is an error at once", func(t *testing.T) {
		if _, err := NewCleaner(CleanerOptions{NetNS: 1 << 30}); err == nil {
			t.Error("want an error")
		}
	})
}

// What the cleaner does not know of cannot have been a node port's: only the kernel knows the machine's addresses.
func TestCleanerNodePortAddresses(t *testing.T) {
	c := newCleaning(t)
	config := compiler.Default()
	config.NodePortAddresses = compiler.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	var err error
	if c.rules, err = compiler.New(config); err != nil {
		t.Fatal(err)
	}
	addLocalRoute(t, c.namespace, "192.0.2.0/24")
	c.add(udpFlow("192.0.2.7:30053", "192.0.2.7:30053"))
	c.add(udpFlow("192.0.3.7:30053", "192.0.3.7:30053"))
	c.sync(started(changed(udpPort("dns", 30053, endpointA))))
	if err := c.flows.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := c.table.Dump(nil)
	if err != nil || len(entries) != 1 || entries[0].TupleOrig.IP.DestinationAddress != netip.MustParseAddr("192.0.3.7") {
		t.Errorf("left: %v, %v; want the flow to another machine alone", entries, err)
	}
}

// addLocalRoute makes all addresses of a prefix the namespace's own.
func addLocalRoute(t *testing.T, namespace int, prefix string) {
	t.Helper()
	h, err := routes.NewHandleAt(vishvananda.NsHandle(namespace), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	_, network, err := net.ParseCIDR(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetUp(&routes.Device{LinkAttrs: routes.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := h.RouteAdd(&routes.Route{Dst: network, LinkIndex: 1, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST}); err != nil {
		t.Fatal(err)
	}
}

func TestCleanerGap(t *testing.T) {
	t.Run("removes connections to frontends with endpoints", func(t *testing.T) {
		c := newCleaning(t)
		c.add(flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.10:80", "10.96.0.10:80"))
		c.add(flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.11:80", "10.96.0.11:80"))
		c.flows.Gap(func(_ model.Family, protocol model.Protocol, addr netip.Addr, port uint16) bool {
			return protocol == model.TCP && addr == netip.MustParseAddr("10.96.0.10") && port == 80
		})
		if err := c.flows.Clean(t.Context()); err != nil || c.held() != 1 {
			t.Errorf("%d connections are left (%v), want the one to an address without endpoints", c.held(), err)
		}
		if c.flows.openGap() != nil {
			t.Error("the gap is still open")
		}
	})
	t.Run("a gap during a search is searched for next", func(t *testing.T) {
		c := newCleaning(t)
		c.add(flow(unix.IPPROTO_TCP, "10.244.1.9:1000", "10.96.0.10:80", "10.96.0.10:80"))
		nothing := func(model.Family, model.Protocol, netip.Addr, uint16) bool { return false }
		c.flows.Gap(func(model.Family, model.Protocol, netip.Addr, uint16) bool {
			c.flows.Gap(nothing)
			return false
		})
		if err := c.flows.Clean(t.Context()); err != nil || c.flows.openGap() == nil {
			t.Errorf("the new gap is closed, %v", err)
		}
	})
}
