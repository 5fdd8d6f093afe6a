package sysctl

import "os"

// HasIPv6 reports whether this network namespace speaks IPv6: the kernel has it, and
// nobody disabled it for all interfaces.
func (t Tree) HasIPv6() bool {
	if _, err := os.Stat(t.path("proc/net/if_inet6")); err != nil {
		return false
	}
	disabled, err := t.readInt("proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err != nil || disabled == 0
}
