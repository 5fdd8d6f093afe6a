package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Trace is one step of a packet with nftrace: a rule that it matched, or the end of a chain.
type Trace struct {
	// ID is the same for all steps of a packet. The kernel makes it from the packet's place in memory, its flow and its
	// incoming interface, so a later packet may have the same ID, and a packet that comes back in by lo gets another ID.
	ID uint32
	// Family, Table and Chain name the rule's chain.
	Family       Family
	Table, Chain string
	// Handle is the rule's handle (see KernelTable); 0 at the end of a chain.
	Handle uint64
	// Verdict is the rule's verdict. It is zero if the next rule runs, and for verdicts that this package does not know, such as
	// queue. At the end of a base chain it is the policy; at the end of a regular chain it is zero.
	Verdict Verdict
	// Source, Destination, Protocol and Hops, the TTL or hop limit, come from the packet's headers, and In and Out are the
	// indexes of its interfaces. Only the first step in each base chain has them.
	Source, Destination netip.AddrPort
	Protocol, Hops      uint8
	In, Out             uint32
	// Headers are the header of IP and the first 20 bytes behind it, in the same steps.
	Headers []byte
	// Lost says that steps were lost, because more came than the socket holds. Then all other fields are zero.
	Lost bool
}

// Tracer receives the steps of all packets with nftrace in one network namespace, whichever program has set it.
type Tracer struct{ *subscription[Trace] }

// traceBuffer is the size of the buffer for unread steps, in bytes. A step takes some 200, and in the kernel 1 KiB.
const traceBuffer = 16 << 20

// Trace opens a Tracer in the connection's network namespace. The process needs CAP_NET_ADMIN.
func (c *Conn) Trace() (*Tracer, error) {
	s, err := subscribe(c.namespace, unix.NFNLGRP_NFTRACE, traceBuffer, Trace{Lost: true})
	if err != nil {
		return nil, err
	}
	t := &Tracer{s}
	s.take = t.take
	return t, nil
}

func (t *Tracer) take(r reply) error {
	if r.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
		return nil
	}
	step, err := decodeTrace(r.Data)
	t.add(step)
	return err
}

// decodeTrace decodes an NFT_MSG_TRACE message.
func decodeTrace(data []byte) (t Trace, err error) {
	var verdict, network, transport []byte
	policy := ^uint32(0)
	err = decodeAttributes(data, variables{
		unix.NFTA_TRACE_ID: &t.ID, unix.NFTA_TRACE_TABLE: &t.Table, unix.NFTA_TRACE_CHAIN: &t.Chain, unix.NFTA_TRACE_RULE_HANDLE: &t.Handle,
		unix.NFTA_TRACE_VERDICT: &verdict, unix.NFTA_TRACE_POLICY: &policy, unix.NFTA_TRACE_IIF: &t.In, unix.NFTA_TRACE_OIF: &t.Out,
		unix.NFTA_TRACE_NETWORK_HEADER: &network, unix.NFTA_TRACE_TRANSPORT_HEADER: &transport,
	}.Take)
	var code uint32
	if err == nil && verdict != nil {
		err = netlinkattr.Each(verdict, variables{unix.NFTA_VERDICT_CODE: &code, unix.NFTA_VERDICT_CHAIN: &t.Verdict.Chain}.Take)
		t.Verdict.Kind = verdictKind(expr.VerdictKind(int32(code)))
	}
	switch policy {
	case nfAccept:
		t.Verdict = Accept
	case nfDrop:
		t.Verdict = Drop
	}
	if err != nil {
		return t, fmt.Errorf("nft: a message of a trace: %w", err)
	}
	t.Family = Family(data[0])
	t.readHeaders(network, transport)
	t.Headers = slices.Concat(network, transport)
	return t, nil
}

// readHeaders fills in the addresses, if there is an IP header, and the ports, if the protocol has them.
func (t *Trace) readHeaders(network, transport []byte) {
	var source, destination netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		source, _ = netip.AddrFromSlice(network[12:16])
		destination, _ = netip.AddrFromSlice(network[16:20])
		t.Protocol, t.Hops = network[9], network[8]
	case len(network) >= 40 && network[0]>>4 == 6:
		source, _ = netip.AddrFromSlice(network[8:24])
		destination, _ = netip.AddrFromSlice(network[24:40])
		t.Protocol, t.Hops = network[6], network[7]
	default:
		return
	}
	var from, to uint16
	switch t.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		if len(transport) >= 4 {
			from, to = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
		}
	}
	t.Source, t.Destination = netip.AddrPortFrom(source, from), netip.AddrPortFrom(destination, to)
}
