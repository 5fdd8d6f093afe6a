package evaluator

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// Packet is a packet as the node first sees it. The client of the connection has sent it: answers are not modelled.
type Packet struct {
	// Source and Destination are addresses of one family. Port 0 means that there is none, or that it is not known, which
	// is an error only if a rule looks at it.
	Source, Destination netip.AddrPort
	// Protocol is the IP protocol number, such as unix.IPPROTO_TCP.
	Protocol uint8
	// Hops is the TTL or hop limit; 0 if it is not known. The proxy's rules then take it for one of a client.
	Hops uint8
	// Local says that a process of the node sends the packet. All other packets arrive by an interface.
	Local bool
	// Interface is the name of that interface. Empty means that it is not known, which is an error only if a rule looks at
	// it. It must be empty if Local is set.
	Interface string
	// Mark is the packet mark before the first rule.
	Mark uint32
	// Connection is the entry of conntrack for the packet's connection. If it is nil, the packet is the first of a
	// connection: its state is new, and NAT chains see it. Otherwise its state is established, and NAT chains do not see
	// it.
	Connection *Connection
}

// Connection is the translation of an established connection.
type Connection struct {
	// Destination is the destination after translation; the zero value or the packet's own if it was not translated.
	Destination netip.AddrPort
	// Masqueraded says that the connection got a source address of the node.
	Masqueraded bool
	// Unanswered says that no answer has come, so the packet's state is still new.
	Unanswered bool
}

func (c *Connection) state() string {
	if c.Unanswered {
		return "unanswered"
	}
	return "established"
}

// String returns the packet in one line, such as
// "tcp 198.51.100.7 to 10.96.0.10:80, coming in by eth0".
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s to %s", nft.ProtocolName(p.Protocol), formatAddrPort(p.Source), formatAddrPort(p.Destination))
	switch {
	case p.Local:
		text += ", from a process of the node"
	case p.Interface != "":
		text += ", coming in by " + p.Interface
	}
	if p.Connection != nil {
		text += ", of an " + p.Connection.state() + " connection"
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

func (p Packet) family() nft.Family { return familyOf(p.Destination.Addr()) }

func familyOf(addr netip.Addr) nft.Family {
	if addr.Is4() {
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

// formatAddrPort prints an address and its port, if it has one.
func formatAddrPort(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// Host is the state of the machine's kernel besides rules. The zero value has loopback addresses only, and no routes.
type Host struct {
	// Addresses are the machine's own addresses on all interfaces. Loopback addresses need not be named.
	Addresses []netip.Addr `json:"-"`
	// Routes may be incomplete, unless there are Rules. If no route fits, that is an error only if a rule looks at the
	// outgoing interface.
	Routes []Route `json:"routes"`
	// Rules are the routing rules of both families, in the order of their priorities. Without them, the tables local and
	// main count.
	Rules []RoutingRule `json:"rules,omitempty"`
	// Policies are those of IPsec, in the order of their priorities.
	Policies []Policy `json:"policies,omitempty"`
	// Interfaces are the numbers of the interfaces, by name. Only rules of other programs look at them.
	Interfaces map[string]uint32 `json:"interfaces,omitempty"`
	// Bridges has the bridge of each port, by names.
	Bridges map[string]string `json:"bridges,omitempty"`
	// BridgePorts has the port of a bridge behind which an address is, where the kernel knows it.
	BridgePorts map[netip.Addr]string `json:"bridgePorts,omitempty"`
	// BridgeFilters are the families whose hooks br_netfilter calls at ports.
	BridgeFilters []nft.Family `json:"-"`
	// NoHairpin are ports to which their bridge forwards no packet that came in by them.
	NoHairpin []string `json:"noHairpin,omitempty"`
	// Devices are the settings of interfaces, by name. Without them the walk does not know whether the kernel forwards, and
	// assumes that it does.
	Devices map[string]Device `json:"devices,omitempty"`
	// FailedNeighbours are next hops that have not answered when the kernel asked for their Ethernet addresses.
	FailedNeighbours []Hop `json:"failedNeighbours,omitempty"`
	// Ask, if set, asks the kernel for the route of a packet, whose destination is translated already. Without a Source, it is
	// about the way to the destination. The answer counts in place of Routes, Rules and Devices, which then only give the
	// reason of a refusal.
	Ask func(Packet) (Answer, error) `json:"-"`
	// Lookup finds the element that a key finds in a set that is nft.Set.Partial, as nft.Conn.Lookup does. Without it, such
	// sets are not known.
	Lookup func(table *nft.Table, set string, key nft.Data) (nft.Element, bool, error) `json:"-"`
}
