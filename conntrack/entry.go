package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// entry is an entry of the kernel's listing.
type entry struct {
	flow Flow
	// original, zone and id name the entry: the tuple of its first packet; the zone, nil for the default one; and the
	// number that distinguishes it from a later entry with the same tuple.
	original, zone, id []byte
	status             uint32
	details            Entry
}

// Entry is a flow with the kernel's further data.
type Entry struct {
	Flow
	// Answered says that a packet came back.
	Answered bool
	// Left is the time until the kernel drops the entry, unless a packet comes.
	Left time.Duration
	// Begun is the time of the first packet; zero unless net.netfilter.nf_conntrack_timestamp was on then.
	Begun time.Time
	// Packets and Bytes count both directions; 0 unless net.netfilter.nf_conntrack_acct was on at the first packet.
	Packets, Bytes uint64
}

// Unanswered reports whether no packet has come back, and the kernel still waits for one: TCP in SYN_SENT, or a UDP flow
// of one direction.
func (e *Entry) Unanswered() bool { return !e.Answered && !e.Finished() }

// entry returns the Entry of the kernel's entry.
func (e *entry) entry() Entry {
	e.details.Flow, e.details.Answered = e.flow, e.status&statusSeenReply != 0
	return e.details
}

// name returns the attributes that name the entry to the kernel.
func (e *entry) name() []byte {
	var b netlinkattr.List
	b.Bytes(ctaTupleOrig|unix.NLA_F_NESTED, e.original)
	if e.zone != nil {
		b.Bytes(ctaZone, e.zone)
	}
	b.Bytes(ctaID, e.id)
	return b
}

var errMalformed = errors.New("the kernel sent a malformed entry")

// headerLen is the length of a struct nfgenmsg.
const headerLen = 4

// decodeEntry reads a message of a listing, without its netlink header. The entry shares its memory.
func decodeEntry(message []byte) (entry, error) {
	var e entry
	var original, reply tuple
	err := netlinkattr.Each(message[min(headerLen, len(message)):], func(typ uint16, payload []byte) (err error) {
		switch typ {
		case ctaTupleOrig:
			e.original, original = payload, tuple{} // the last attribute counts
			err = netlinkattr.Each(payload, original.take)
		case ctaTupleReply:
			reply = tuple{}
			err = netlinkattr.Each(payload, reply.take)
		case ctaProtoInfo:
			err = netlinkattr.Each(payload, e.flow.takeState)
		case ctaZone:
			e.zone = payload
		case ctaID:
			e.id = payload
		case ctaStatus:
			e.status, err = netlinkattr.Uint32(payload)
		case ctaTimeout:
			var seconds uint32
			seconds, err = netlinkattr.Uint32(payload)
			e.details.Left = time.Duration(seconds) * time.Second
		case ctaCountersOrig, ctaCountersReply:
			var packets, bytes uint64
			err = netlinkattr.Each(payload, netlinkattr.Variables{ctaCounterPackets: &packets, ctaCounterBytes: &bytes}.Take)
			e.details.Packets, e.details.Bytes = e.details.Packets+packets, e.details.Bytes+bytes
		case ctaTimestamp:
			var nanoseconds uint64
			err = netlinkattr.Each(payload, netlinkattr.Variables{ctaTimestampStart: &nanoseconds}.Take)
			if nanoseconds > 0 {
				e.details.Begun = time.Unix(0, int64(nanoseconds)).UTC()
			}
		}
		return err
	})
	if err != nil {
		return e, fmt.Errorf("%w: %w", errMalformed, err)
	}
	e.flow.Protocol, e.flow.Source, e.flow.Dialed, e.flow.Server = original.protocol, original.from(), original.to(), reply.from()
	if !e.flow.Source.IsValid() || !e.flow.Dialed.IsValid() || !e.flow.Server.IsValid() || e.id == nil {
		return e, errMalformed
	}
	return e, nil
}

// tuple is one direction of a flow. Ports are 0 where the protocol has none.
type tuple struct {
	protocol             uint8
	source, destination  netip.Addr
	sourcePort, destPort uint16
}

func (t *tuple) from() netip.AddrPort { return netip.AddrPortFrom(t.source, t.sourcePort) }
func (t *tuple) to() netip.AddrPort   { return netip.AddrPortFrom(t.destination, t.destPort) }

// take takes an attribute of a tuple.
func (t *tuple) take(typ uint16, payload []byte) error {
	switch typ {
	case ctaTupleIP:
		return netlinkattr.Each(payload, t.takeAddr)
	case ctaTupleProto:
		return netlinkattr.Each(payload, t.takeTransport)
	}
	return nil
}

func (t *tuple) takeAddr(typ uint16, payload []byte) error {
	switch typ {
	case ctaIPv4Src, ctaIPv6Src:
		t.source, _ = netip.AddrFromSlice(payload)
	case ctaIPv4Dst, ctaIPv6Dst:
		t.destination, _ = netip.AddrFromSlice(payload)
	}
	return nil
}

func (t *tuple) takeTransport(typ uint16, payload []byte) (err error) {
	switch typ {
	case ctaProtoNum:
		if len(payload) != 1 {
			return netlinkattr.ErrShort
		}
		t.protocol = payload[0]
	case ctaProtoSrcPort:
		t.sourcePort, err = netlinkattr.Uint16(payload)
	case ctaProtoDstPort:
		t.destPort, err = netlinkattr.Uint16(payload)
	}
	return err
}
