package sysctl

import "os"

// HasIPv6 reports whether this network namespace has IPv6: the kernel supports it, and it is not disabled
// for all interfaces.
func (t Tree) HasIPv6() bool {
	if _, err := os.Stat(t.path("proc/net/if_inet6")); err != nil {
		return false
	}
	disabled, err := t.readInt("proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err != nil || disabled == 0
}
