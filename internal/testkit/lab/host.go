package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host is a network namespace with addresses: a node, a pod or the host outside.
type Host struct {
	// Name says which host this is, for messages.
	Name string

	namespace *netns.Namespace
	// routes talks rtnetlink inside the namespace, from any thread.
	routes *netlink.Handle

	// mu guards addrs: pods come and go while others look addresses up.
	mu    sync.Mutex
	addrs []netip.Addr
}

func newHost(name string, role role) (*Host, error) {
	namespace, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	h := &Host{Name: name, namespace: namespace}
	if err := h.Do(func() error { return h.prepare(role) }); err != nil {
		h.close()
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	return h, nil
}

func (h *Host) prepare(role role) (err error) {
	if err := writeSysctls(role); err != nil {
		return err
	}
	if h.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	return h.routes.LinkSetUp(h.loopback())
}

func (h *Host) close() {
	if h.routes != nil {
		h.routes.Close()
	}
	h.namespace.Close()
}

// Do runs fn inside the host's namespace, on a thread of its own. Sockets that fn itself
// opens belong to the host for good and may be used anywhere; goroutines that fn starts do
// not run inside. fn must not use testing.T's FailNow family: it ends a goroutine that is not the test's.
func (h *Host) Do(fn func() error) error {
	return h.namespace.Do(fn)
}

// NetNS returns the open namespace, for libraries that take a file descriptor. The lab
// keeps owning it.
func (h *Host) NetNS() *os.File {
	return h.namespace.File()
}

// Routes talks rtnetlink inside the host, from any thread. The host keeps owning it.
func (h *Host) Routes() *netlink.Handle { return h.routes }

// Addrs returns the addresses of the host in the order in which it got them, without loopback.
func (h *Host) Addrs() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.addrs)
}

// Has reports whether addr is one of the host's addresses.
func (h *Host) Has(addr netip.Addr) bool {
	return slices.Contains(h.Addrs(), addr)
}

// FlushConntrack forgets every connection that the host tracks, so that the next packets
// are judged as if they were the first.
func (h *Host) FlushConntrack() error {
	return h.Do(func() error {
		conn, err := conntrack.Dial(nil)
		if err != nil {
			return fmt.Errorf("host %s: conntrack: %w", h.Name, err)
		}
		defer conn.Close()
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("host %s: flush conntrack: %w", h.Name, err)
		}
		return nil
	})
}

func (h *Host) loopback() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
}

// addAddr puts addr alone, not its network, on link.
func (h *Host) addAddr(link netlink.Link, addr netip.Addr) error {
	err := h.routes.AddrAdd(link, &netlink.Addr{IPNet: single(addr), Flags: addrFlags(addr)})
	if err != nil {
		return fmt.Errorf("host %s: add address %s: %w", h.Name, addr, err)
	}
	if err := h.awaitLocal(addr); err != nil {
		return err
	}
	h.own(addr)
	return nil
}

// awaitLocal waits until the host takes packets to addr. For IPv6 the kernel leaves that to
// a work queue, which lags behind when the machine is busy.
func (h *Host) awaitLocal(addr netip.Addr) error {
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); time.Sleep(50 * time.Microsecond) {
		routes, err := h.routes.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("host %s: address %s does not become usable", h.Name, addr)
}

func (h *Host) own(addr netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.addrs, addr) {
		h.addrs = append(h.addrs, addr)
	}
}

func (h *Host) removeAddr(link netlink.Link, addr netip.Addr) error {
	if err := h.routes.AddrDel(link, &netlink.Addr{IPNet: single(addr)}); err != nil {
		return fmt.Errorf("host %s: remove address %s: %w", h.Name, addr, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addrs = slices.DeleteFunc(h.addrs, func(owned netip.Addr) bool { return owned == addr })
	return nil
}

// addrFlags spares an IPv6 address duplicate detection: it would be unusable for a second.
func addrFlags(addr netip.Addr) int {
	if addr.Is6() {
		return unix.IFA_F_NODAD
	}
	return 0
}

// DialContext connects from the host, for libraries that take a function like net.Dialer's.
func (h *Host) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
