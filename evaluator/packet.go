package evaluator

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Packet is a packet as the node first sees it, sent by whoever opened the connection;
// answers are not walked.
type Packet struct {
	// Source and Destination are what the packet says. Port 0 means none or, for the
	// source, not known: an error comes of it only if a rule looks at it.
	Source, Destination netip.AddrPort
	// Protocol is the IP protocol number, such as unix.IPPROTO_TCP.
	Protocol uint8
	// Local says that a process of the node sends it. All others come in by an interface.
	Local bool
	// Interface is the name of that interface; empty when it is not known, which is an
	// error only if a rule looks at it.
	Interface string
	// Mark is the packet mark before any rule of the tables set it.
	Mark uint32
	// Connection is what conntrack knows of the packet's connection. Without it the packet
	// is the first one: its state is new, and NAT chains see it. With it the state is
	// established, and NAT chains do not.
	Connection *Connection
}

// Connection is how an established connection was translated.
type Connection struct {
	// Destination is where it goes instead of the packet's destination, if that is another.
	Destination netip.AddrPort
	// Masqueraded says that it got a source address of the node's.
	Masqueraded bool
}

// String returns the packet in one line, such as
// "tcp 198.51.100.7 to 10.96.0.10:80, coming in by eth0".
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s to %s", protocolName(p.Protocol), formatAddrPort(p.Source), formatAddrPort(p.Destination))
	switch {
	case p.Local:
		text += ", from a process of the node"
	case p.Interface != "":
		text += ", coming in by " + p.Interface
	}
	if p.Connection != nil {
		text += ", of an established connection"
	}
	return text
}

func (p Packet) validate() error {
	source, destination := p.Source.Addr(), p.Destination.Addr()
	switch {
	case !source.IsValid():
		return errors.New("evaluator: the packet has no source address")
	case !destination.IsValid():
		return errors.New("evaluator: the packet has no destination address")
	case source.Is4In6() || destination.Is4In6():
		return errors.New("evaluator: the packet has an IPv4 address written as IPv6; unmap it")
	case source.Is4() != destination.Is4():
		return fmt.Errorf("evaluator: source %s and destination %s are of different families", source, destination)
	case p.Protocol == 0:
		return errors.New("evaluator: the packet has no protocol")
	case p.Local && p.Interface != "":
		return fmt.Errorf("evaluator: a packet of the node's own comes in by no interface, not by %s", p.Interface)
	}
	return nil
}

func (p Packet) family() nft.Family {
	if p.Destination.Addr().Is4() {
		return nft.FamilyIP
	}
	return nft.FamilyIP6
}

// hasPorts reports whether the transport header of a protocol starts with ports.
func hasPorts(protocol uint8) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	}
	return "protocol " + strconv.Itoa(int(protocol))
}

// formatAddrPort leaves out a port that is not there.
func formatAddrPort(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}
