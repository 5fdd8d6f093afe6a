package evaluator

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// ctStateEstablished is the bit of ct state that says that packets were seen in both directions.
const ctStateEstablished = 1 << 1

// ctStatusSNAT is the bit of ct status that says the source was translated.
const ctStatusSNAT = 1 << 4

// UnknownSourcePort is in the text of the error that says that a rule looks at the source port of a packet without one.
const UnknownSourcePort = "the source port is not known"

// value is the value of a field. If it is not known, data is zeros and unknown says why.
type value struct {
	data    nft.Data
	unknown string
}

func unknownValue(length int, why string) value {
	return value{nft.Data(make([]byte, length)), why}
}

// known returns the value of a field, or an error if it is not known.
func (w *walk) known(f nft.Field) (nft.Data, error) {
	v, err := w.field(f)
	if err == nil && v.unknown != "" {
		err = errors.New(v.unknown)
	}
	return v.data, err
}

// field returns the current value of a field. An error says that the field is not modelled, or that the packet or hook
// has no such field.
func (w *walk) field(f nft.Field) (value, error) {
	switch f {
	case nft.IPSaddr, nft.IP6Saddr:
		return w.address(f, w.family.Saddr(), w.source.Addr())
	case nft.IPDaddr, nft.IP6Daddr:
		return w.address(f, w.family.Daddr(), w.destination.Addr())
	case nft.ThSport:
		return w.port(w.source.Port(), UnknownSourcePort), nil
	case nft.ThDport:
		return w.port(w.destination.Port(), "the destination port is not known"), nil
	case nft.MetaL4proto:
		return value{data: nft.ProtoData(w.packet.Protocol)}, nil
	case nft.MetaMark:
		return value{data: nft.IntegerData(w.mark)}, nil
	case nft.MetaIifname:
		return w.iif.value(), nil
	case nft.MetaOifname:
		return w.oif.value(), nil
	case nft.IPTTL, nft.IP6Hoplimit:
		return value{data: nft.ProtoData(w.hops)}, nil
	case nft.TCPFlags:
		if w.packet.Protocol != unix.IPPROTO_TCP {
			return value{}, errors.New("the packet has no TCP flags")
		}
		if w.packet.Connection != nil {
			return value{}, errors.New("the flags of later packets are not known")
		}
		return value{data: nft.ProtoData(nft.TCPFlagSYN)}, nil
	case nft.ICMPType, nft.ICMPv6Type:
		if w.packet.Connection != nil {
			return value{}, errors.New("the type of later packets is not known")
		}
		return w.icmpType(f)
	case nft.FibSaddrType:
		return w.addressType(w.source.Addr()), nil
	case nft.FibDaddrType:
		return w.addressType(w.destination.Addr()), nil
	}
	if !w.tracked {
		return value{}, errors.New("the chain runs before connection tracking")
	}
	return w.conntrackField(f)
}

// icmpType returns the type of the messages that begin a connection: echo requests. Errors belong to other connections.
func (w *walk) icmpType(f nft.Field) (value, error) {
	const echoRequest, echoRequestV6 = 8, 128
	switch {
	case f == nft.ICMPType && w.packet.Protocol == unix.IPPROTO_ICMP:
		return value{data: nft.ProtoData(echoRequest)}, nil
	case f == nft.ICMPv6Type && w.packet.Protocol == unix.IPPROTO_ICMPV6:
		return value{data: nft.ProtoData(echoRequestV6)}, nil
	}
	return value{}, errors.New("the packet is no such ICMP message")
}

func (w *walk) conntrackField(f nft.Field) (value, error) {
	switch f {
	case nft.CTState:
		if w.packet.Connection != nil {
			return value{data: nft.IntegerData(ctStateEstablished)}, nil
		}
		return value{data: nft.IntegerData(nft.CTStateNew)}, nil
	case nft.CTStatus:
		return value{data: nft.IntegerData(w.ctStatus())}, nil
	case nft.CTOriginalIPDaddr, nft.CTOriginalIP6Daddr:
		return w.address(f, w.family.OriginalDaddr(), w.packet.Destination.Addr())
	case nft.CTOriginalProtoDst:
		return w.port(w.packet.Destination.Port(), "the destination port is not known"), nil
	case nft.CTReplyProtoSrc:
		return w.port(w.answerer().Port(), "the destination port is not known"), nil
	}
	return value{}, errors.New("the evaluator does not model this field")
}

// answerer returns the address that answers the connection, as far as the walk has decided yet.
func (w *walk) answerer() netip.AddrPort {
	if c := w.packet.Connection; c != nil && w.changed[destination] {
		return c.Destination
	}
	return w.destination
}

// address returns the value of an address field. want is the field of its kind in packets of the family.
func (w *walk) address(f, want nft.Field, addr netip.Addr) (value, error) {
	if f != want {
		return value{}, fmt.Errorf("packets of family %s have no %s", w.family, f)
	}
	if !addr.IsValid() {
		return unknownValue(w.destination.Addr().BitLen()/8, w.unknownSource()), nil
	}
	return value{data: nft.AddrData(addr)}, nil
}

// unknownSource says why there is no source address.
func (w *walk) unknownSource() string {
	return fmt.Sprintf("the source address after masquerading towards %s is not known", w.destination.Addr())
}

// port returns the value of a port field. If the protocol has no ports, it is unknown: the kernel reads whatever bytes
// are in their place.
func (w *walk) port(port uint16, unknown string) value {
	if !hasPorts(w.packet.Protocol) {
		unknown = nft.ProtocolName(w.packet.Protocol) + " has no ports"
	} else if port != 0 {
		return value{data: nft.PortData(port)}
	}
	return unknownValue(len(nft.PortData(0)), unknown)
}

// value returns the name as a register holds it. A hook without such an interface sees an empty name.
func (i ifname) value() value {
	var name [unix.IFNAMSIZ]byte
	copy(name[:], i.name)
	return value{nft.Data(name[:]), i.unknown}
}

// addressType tells local addresses from all others.
func (w *walk) addressType(addr netip.Addr) value {
	if masqueraded := !addr.IsValid(); masqueraded || w.host.isLocal(addr) {
		return value{data: nft.IntegerData(unix.RTN_LOCAL)}
	}
	return value{data: nft.IntegerData(unix.RTN_UNSPEC)}
}

func (w *walk) ctStatus() uint32 {
	var status uint32
	if w.changed[destination] {
		status |= nft.CTStatusDNAT
	}
	if w.changed[source] {
		status |= ctStatusSNAT
	}
	return status
}
