// Package conntrack removes entries from the kernel's connection tracking table, over
// netlink, without the conntrack program.
//
// A Service's address is translated when a flow's first packet arrives; for all later
// packets the kernel does what it remembers. A TCP client whose endpoint is gone gets a
// reset and dials anew. A UDP client may go on sending to where nobody answers for as long
// as it keeps the entry alive, so somebody has to remove it.
package conntrack

import "net/netip"

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
