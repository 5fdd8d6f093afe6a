package conntrack

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// entry is an entry as the kernel lists it.
type entry struct {
	flow Flow
	// What names the entry, as the kernel sent it: the tuple of its first packet, the zone
	// unless it is the default one, and the number that tells it from a later entry with the
	// same tuple.
	original, zone, id []byte
}

// name returns the attributes that name the entry to the kernel.
func (e *entry) name() []byte {
	b := appendAttribute(nil, ctaTupleOrig|nested, e.original)
	if e.zone != nil {
		b = appendAttribute(b, ctaZone, e.zone)
	}
	return appendAttribute(b, ctaID, e.id)
}

var errMalformed = errors.New("the kernel sent a malformed entry")

// headerLen is the length of a struct nfgenmsg.
const headerLen = 4

// decodeEntry reads a message of a listing, which comes without its netlink header. The entry
// shares its memory.
func decodeEntry(message []byte) (entry, error) {
	var e entry
	var original, reply tuple
	for typ, payload := range attributes(message[min(headerLen, len(message)):]) {
		switch typ {
		case ctaTupleOrig:
			e.original, original = payload, decodeTuple(payload)
		case ctaTupleReply:
			reply = decodeTuple(payload)
		case ctaZone:
			e.zone = payload
		case ctaID:
			e.id = payload
		}
	}
	e.flow = Flow{Protocol: original.protocol, Source: original.source, Dialed: original.destination, Server: reply.source}
	if !e.flow.Source.IsValid() || !e.flow.Dialed.IsValid() || !e.flow.Server.IsValid() || e.id == nil {
		return e, errMalformed
	}
	return e, nil
}

// tuple is one direction of a flow. Ports are 0 where the protocol has none.
type tuple struct {
	protocol            uint8
	source, destination netip.AddrPort
}

func decodeTuple(b []byte) (t tuple) {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for typ, payload := range attributes(b) {
		switch typ {
		case ctaTupleIP:
			from, to = decodeAddrs(payload)
		case ctaTupleProto:
			t.protocol, fromPort, toPort = decodeTransport(payload)
		}
	}
	t.source, t.destination = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return t
}

func decodeAddrs(b []byte) (from, to netip.Addr) {
	for typ, payload := range attributes(b) {
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			from, _ = netip.AddrFromSlice(payload)
		case ctaIPv4Dst, ctaIPv6Dst:
			to, _ = netip.AddrFromSlice(payload)
		}
	}
	return from, to
}

func decodeTransport(b []byte) (protocol uint8, from, to uint16) {
	for typ, payload := range attributes(b) {
		switch {
		case typ == ctaProtoNum && len(payload) == 1:
			protocol = payload[0]
		case typ == ctaProtoSrcPort && len(payload) == 2:
			from = binary.BigEndian.Uint16(payload)
		case typ == ctaProtoDstPort && len(payload) == 2:
			to = binary.BigEndian.Uint16(payload)
		}
	}
	return protocol, from, to
}
