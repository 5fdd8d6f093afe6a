// Package conntrack removes entries from the kernel's connection tracking table, over
// netlink, without the conntrack program.
//
// A Service's address is translated when a flow's first packet arrives; for all later
// packets the kernel does what it remembers. A TCP client whose endpoint is gone gets a
// reset and dials anew. A UDP client may go on sending to where nobody answers for as long
// as it keeps the entry alive, so somebody has to remove it.
package conntrack

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is an IP family, with the number that the kernel has for it.
type Family uint8

// The IP families.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// Flow is what matters of an entry: where its first packet went, and where answers come
// from. The two differ when the destination was translated.
type Flow struct {
	// Protocol is the IP protocol number.
	Protocol uint8
	// Source is who sent the first packet.
	Source netip.AddrPort
	// Dialed is the destination of the first packet as it was sent.
	Dialed netip.AddrPort
	// Server is who answers.
	Server netip.AddrPort
}

// Translated reports whether the destination was translated.
func (f Flow) Translated() bool { return f.Dialed != f.Server }
