package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func TestConnTableStats(t *testing.T) {
	ns := netns.ForTest(t)
	c, table := newTableIn(t, ns)
	for i := range 3 {
		f := web4
		f.Source = netip.AddrPortFrom(f.Source.Addr(), uint16(2000+i))
		add(t, table, f)
	}
	add(t, table, dns6)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := c.TableStats(t.Context())
	if want := (TableStats{Entries: 4, Limit: limit}); err != nil || stats != want {
		t.Fatalf("%+v, %v; want %+v", stats, err, want)
	}

	// Nothing here makes an insertion fail, so that the counters of each processor are read is shown by another one.
	t.Run("counters are those of the kernel's file", func(t *testing.T) {
		sendInvalid(t, ns, 5)
		const ctaStatsInvalid = 4
		var invalid uint64
		if err := c.sum(t.Context(), msgGetStatsCPU, netlink.Dump, map[uint16]*uint64{ctaStatsInvalid: &invalid}); err != nil || invalid < 5 || invalid != countedInProc(t, ns, "invalid") {
			t.Errorf("%d invalid packets, %v; the file has %d, and 5 were sent", invalid, err, countedInProc(t, ns, "invalid"))
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.TableStats(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %v", err, context.Canceled)
		}
	})
}

// countedInProc sums a column of /proc/net/stat/nf_conntrack, which has a row for each processor, in hexadecimal.
func countedInProc(t *testing.T, ns *netns.Namespace, column string) (sum uint64) {
	t.Helper()
	if err := ns.Do(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		for i, name := range strings.Fields(lines[0]) {
			for _, line := range lines[1:] {
				if name == column {
					n, err := strconv.ParseUint(strings.Fields(line)[i], 16, 64)
					if err != nil {
						return err
					}
					sum += n
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return sum
}

// sendInvalid sends resets of no connection, which conntrack takes for invalid.
func sendInvalid(t *testing.T, ns *netns.Namespace, n int) {
	t.Helper()
	if err := ns.Do(func() error {
		for _, command := range []string{"ip link set lo up", "nft add table ip t", "nft add chain ip t c { type filter hook output priority 0; }", "nft add rule ip t c ct state invalid counter"} {
			args := strings.Fields(command)
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(raw)
		reset := []byte{7, 208, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 4, 1 << 2, 0, 0, 0, 0, 0, 0}
		for range n {
			if err := unix.Sendto(raw, reset, 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
