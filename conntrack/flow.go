// Package conntrack removes entries from the kernel's connection tracking table, over
// netlink, without the conntrack program.
//
// The kernel translates a Service's address for the first packet of a flow, and records the translation in an entry. It
// translates all later packets by the entry. A TCP client whose endpoint is gone gets a reset and dials anew. But a UDP
// client may keep the entry alive and send to an endpoint that does not answer. Such entries have to be deleted.
package conntrack

import "net/netip"

// Flow holds the addresses of an entry: those of its first packet, and the one from which answers come. Dialed and
// Server differ if the destination was translated.
type Flow struct {
	// Protocol is the IP protocol number.
	Protocol uint8
	// Source is the source of the first packet: the client.
	Source netip.AddrPort
	// Dialed is the destination of the first packet before translation.
	Dialed netip.AddrPort
	// Server is the source of answers: the endpoint.
	Server netip.AddrPort
}

// Translated reports whether the destination was translated.
func (f Flow) Translated() bool { return f.Dialed != f.Server }
