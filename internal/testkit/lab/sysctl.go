package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// role says whether a host forwards.
type role int

const (
	// leaf sends and receives for itself only. What it gets for others it drops without a
	// word, so that a packet that no rule caught ends in silence.
	leaf role = iota
	// router forwards.
	router
)

type sysctl struct{ name, value string }

// sysctlsOfEveryHost comes before any link exists: a link copies "default" when it is made.
var sysctlsOfEveryHost = []sysctl{
	{"net.ipv6.conf.all.disable_ipv6", "0"},
	{"net.ipv6.conf.default.disable_ipv6", "0"},
	// The rules under test decide about source addresses, nothing else does.
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
	// Neighbours are static and links have no automatic address: a link works from the
	// instant it is up and nobody learns a way around node-1.
	{"net.ipv4.conf.all.send_redirects", "0"},
	{"net.ipv4.conf.default.send_redirects", "0"},
	{"net.ipv4.conf.all.accept_redirects", "0"},
	{"net.ipv4.conf.default.accept_redirects", "0"},
	{"net.ipv6.conf.all.accept_redirects", "0"},
	{"net.ipv6.conf.default.accept_redirects", "0"},
	{"net.ipv6.conf.all.accept_ra", "0"},
	{"net.ipv6.conf.default.accept_ra", "0"},
	{"net.ipv6.conf.default.addr_gen_mode", "1"},
	// A rate limit would turn a refusal into silence.
	{"net.ipv4.icmp_ratelimit", "0"},
	{"net.ipv4.icmp_ratemask", "0"},
	{"net.ipv6.icmp.ratelimit", "0"},
	// A bitmap: of all types, only the reserved type 0 is still limited.
	{"net.ipv6.icmp.ratemask", "0"},
}

// sysctlsOfNewerKernels belong to a namespace on recent kernels only; on older ones they are the initial
// namespace's and not there. The masks above keep messages clear of them there too.
var sysctlsOfNewerKernels = []sysctl{
	{"net.ipv4.icmp_msgs_per_sec", "1000000"},
	{"net.ipv4.icmp_msgs_burst", "1000000"},
}

// sysctlsOfRouters must come first: changing them resets others.
var sysctlsOfRouters = []sysctl{
	{"net.ipv4.ip_forward", "1"},
	{"net.ipv6.conf.all.forwarding", "1"},
	{"net.ipv6.conf.default.forwarding", "1"},
}

var sysctlsOfLeaves = []sysctl{
	{"net.ipv4.ip_forward", "0"},
	{"net.ipv6.conf.all.forwarding", "0"},
	{"net.ipv6.conf.default.forwarding", "0"},
}

// writeSysctls sets up the namespace of the calling thread, which is the one that
// /proc/sys/net shows.
func writeSysctls(role role) error {
	forwarding := sysctlsOfLeaves
	if role == router {
		forwarding = sysctlsOfRouters
	}
	for _, s := range append(forwarding[:len(forwarding):len(forwarding)], sysctlsOfEveryHost...) {
		if err := s.write(); err != nil {
			return err
		}
	}
	for _, s := range sysctlsOfNewerKernels {
		if err := s.write(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (s sysctl) write() error {
	if strings.HasPrefix(s.name, "net.ipv6.") && !HasIPv6 {
		return nil
	}
	path := filepath.Join("/proc/sys", strings.ReplaceAll(s.name, ".", "/"))
	if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
		return fmt.Errorf("set sysctl %s: %w", s.name, err)
	}
	return nil
}
