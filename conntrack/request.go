package conntrack

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// Message types and attributes of linux/netfilter/nfnetlink_conntrack.h, which x/sys/unix does not have.
const (
	msgGet    = 1
	msgDelete = 2

	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoInfo     = 4
	ctaTimeout       = 7
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaID            = 12
	ctaZone          = 18
	ctaTimestamp     = 20
	ctaFilter        = 25 // since Linux 5.8
	ctaStatusMask    = 26 // since Linux 5.15

	ctaCounterPackets = 1
	ctaCounterBytes   = 2
	ctaTimestampStart = 1

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP   = 1
	ctaProtoInfoSCTP  = 3
	ctaProtoInfoState = 1 // of TCP and of SCTP

	// Bits of ctaStatus, from enum ip_conntrack_status.
	statusSeenReply = 1 << 1
	statusDstNAT    = 1 << 5

	ctaFilterOrigFlags = 1
	// These bits make parts of ctaTupleOrig count. Only the kernel's source has them.
	filterDestination     = 1 << 1
	filterProtoNum        = 1 << 3
	filterDestinationPort = 1 << 5

	// groupNew and groupDestroy are bits of the multicast groups for new and ended flows.
	groupNew     = 1 << 0
	groupDestroy = 1 << 2
)

// addressFamilies has the kernel's numbers of the families.
var addressFamilies = map[model.Family]uint8{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}

// listRequest requests the entries that the query selects and that have none of the bits without in their status.
func listRequest(q Query, without uint32) netlink.Message {
	var body netlinkattr.List
	flags := uint32(filterProtoNum)
	tuple := body.Begin(ctaTupleOrig)
	// The kernel's filter for an IPv6 address lists all other addresses (Linux 6.18).
	if addr := q.Dialed.Addr(); addr.Is4() {
		flags |= filterDestination
		ip := body.Begin(ctaTupleIP)
		body.Bytes(ctaIPv4Dst, addr.AsSlice())
		body.End(ip)
	}
	transport := body.Begin(ctaTupleProto)
	body.Bytes(ctaProtoNum, []byte{q.Protocol})
	if port := q.Dialed.Port(); port != 0 {
		flags |= filterDestinationPort
		body.Bytes(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, port))
	}
	body.End(transport)
	body.End(tuple)
	filter := body.Begin(ctaFilter)
	// In the byte order of the machine, unlike all other numbers.
	body.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags))
	body.End(filter)
	if without != 0 {
		body.Bytes(ctaStatus, binary.BigEndian.AppendUint32(nil, 0))
		body.Bytes(ctaStatusMask, binary.BigEndian.AppendUint32(nil, without))
	}
	return request(msgGet, netlink.Dump, q.Family, body)
}

// deleteRequests requests the deletion of the named entries. The kernel answers refused requests and the last one.
func deleteRequests(family model.Family, names [][]byte) []netlink.Message {
	var requests []netlink.Message
	for _, name := range names {
		requests = append(requests, request(msgDelete, 0, family, name))
	}
	requests[len(requests)-1].Header.Flags |= netlink.Acknowledge
	return requests
}

func request(typ uint16, flags netlink.HeaderFlags, family model.Family, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{addressFamilies[family], unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}
