package sysctl

import "os"

// KernelHasIPv6 reports whether the kernel has IPv6 at all: it was built with it (CONFIG_IPV6), and not started with the
// parameter ipv6.disable=1. This does not change while the kernel runs.
func (t Tree) KernelHasIPv6() bool {
	_, err := os.Stat(t.path("proc/net/if_inet6"))
	return err == nil
}

// HasIPv6 reports whether this network namespace has IPv6: the kernel supports it, and it is not disabled
// for all interfaces.
func (t Tree) HasIPv6() bool {
	if !t.KernelHasIPv6() {
		return false
	}
	disabled, err := t.readInt("proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err != nil || disabled == 0
}
