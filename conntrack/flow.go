// Package conntrack lists and removes entries of the kernel's connection tracking table, over netlink.
//
// The kernel translates a Service's address for the first packet of a flow, and records the translation in an entry. It
// translates all later packets by the entry. A TCP client whose endpoint is gone gets a reset and dials anew. A UDP
// client may keep the entry alive, and send to an endpoint that does not answer, so the entry has to be deleted.
package conntrack

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// Flow holds the addresses of an entry, and the state of the connection. Dialed and Server differ if the destination
// was translated.
type Flow struct {
	// Protocol is the IP protocol number.
	Protocol uint8
	// Source is the source of the first packet: the client.
	Source netip.AddrPort
	// Dialed is the destination of the first packet before translation.
	Dialed netip.AddrPort
	// Server is the source of answers: the endpoint.
	Server netip.AddrPort
	// State is the kernel's state of a TCP or SCTP connection, in the words of the conntrack program, such as
	// "ESTABLISHED". It is empty for other protocols.
	State string
}

// Translated reports whether the destination was translated.
func (f Flow) Translated() bool { return f.Dialed != f.Server }

// Finished reports whether the connection has ended, and the kernel keeps its entry for late packets alone.
func (f Flow) Finished() bool {
	return f.State == "TIME_WAIT" || f.State == "CLOSE" || f.State == "CLOSED"
}

// The states by their numbers: enum tcp_conntrack of linux/netfilter/nf_conntrack_tcp.h, and enum sctp_conntrack of
// nf_conntrack_sctp.h. A later kernel's number has no word.
var (
	tcpStates  = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}
	sctpStates = []string{"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED"}
)

// takeState reads an attribute of ctaProtoInfo, whose nested attribute 1 is the state for both protocols.
func (f *Flow) takeState(typ uint16, payload []byte) error {
	var words []string
	switch typ {
	case ctaProtoInfoTCP:
		words = tcpStates
	case ctaProtoInfoSCTP:
		words = sctpStates
	}
	return netlinkattr.Each(payload, func(typ uint16, number []byte) error {
		switch {
		case typ != ctaProtoInfoState || words == nil:
		case len(number) != 1:
			return netlinkattr.ErrShort
		case int(number[0]) < len(words):
			f.State = words[number[0]]
		}
		return nil
	})
}
