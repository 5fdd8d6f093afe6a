package localnodeport_test

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inside says that this process is in a network namespace of its own.
const inside = "LOCALNODEPORT_TEST_INSIDE"

// TestMain runs the tests in a network namespace of their own, all of the process: what
// listens and dials here are goroutines on any thread.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "these tests need a network namespace: left out with -short")
		return
	}
	if os.Getenv(inside) == "" {
		fmt.Fprintln(os.Stderr, "these tests make a network namespace, run them as root:", again())
		os.Exit(1)
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "network namespace:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// again starts this program anew in another network namespace. It returns only an error.
func again() error {
	runtime.LockOSThread() // the thread that calls exec decides on the namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), inside+"=1"))
}

// The node and the pods on it are all addresses of the loopback interface.
var nodeAddrs = []string{"192.168.0.1", "fd00:1::1"}

// podAddrs returns the addresses of a pod, IPv4 and IPv6.
func podAddrs(pod int) []string {
	return []string{fmt.Sprintf("10.244.1.%d", pod), fmt.Sprintf("fd00:10:244:1::%d", pod)}
}

func prepare() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if lo.Attrs().Flags&net.FlagUp != 0 {
		return errors.New("loopback is up already: this is somebody else's namespace, nothing was done to it")
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addresses := nodeAddrs
	for pod := 1; pod <= 5; pod++ {
		addresses = append(addresses[:len(addresses):len(addresses)], podAddrs(pod)...)
	}
	for _, text := range addresses {
		ip := net.ParseIP(text)
		bits := 128
		if ip.To4() != nil {
			bits = 32
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
		if bits == 32 {
			addr.Flags = 0
		}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	for _, text := range append(addresses, "127.0.0.1", "::1") {
		if err := awaitLocal(net.ParseIP(text)); err != nil {
			return err
		}
	}
	return nil
}

// awaitLocal waits until the kernel takes packets to an address. For IPv6 it leaves that to a
// work queue.
func awaitLocal(ip net.IP) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if routes, err := netlink.RouteGet(ip); err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("address %s does not become usable", ip)
}
