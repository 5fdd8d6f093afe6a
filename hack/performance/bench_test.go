package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batch is the number of packets that one system call sends, each the first of its flow.
	batch = 128
	// rounds is the number of batches that each node gets, in turns with the others.
	rounds = 300
	// roundsOfFlows is the number of rounds that leave their flows in connection tracking. A percentile of the batches
	// does not see the first one after that, even where all rounds have the same flows.
	roundsOfFlows = 50
)

// BenchmarkFirstPacket measures the kernel's time for the first packet of a flow that a node forwards from one device
// to another. Batches to all nodes take turns. A node's figures are the 5th percentile of its batches, and the least one.
//
//   - floor: a packet to a ClusterIP, with the smallest ruleset that serves 1,000 Services. floor-untranslated: the same rules,
//     and a packet to an endpoint itself. BenchmarkFirstPacketParts says where the difference to services-1000 comes from.
//   - no-rules: forwarding, without connection tracking.
//   - untranslated: the chains of a node with one Service, and a packet to an endpoint itself.
//   - services-N: a packet to a ClusterIP, on a node with N Services. The packets of a batch go to 64 of them, or to
//     the only one.
//   - services-N-counted: the same with the feature gate NFTProxyServiceCounters.
//   - chain-per-service-N: the same in the layout of kube-proxy's nftables mode. It needs the nft program.
func BenchmarkFirstPacket(b *testing.B) {
	nodes := []*node{
		{name: "no-rules"},
		{name: "floor", floor: true, services: 1000},
		{name: "floor-untranslated", floor: true, services: 1000, direct: true},
		{name: "untranslated", rules: true, services: 1, direct: true},
		{name: "untranslated-1000", rules: true, services: 1000, direct: true},
		{name: "services-1", rules: true, services: 1},
		{name: "services-64", rules: true, services: 64},
		{name: "services-1000", rules: true, services: 1000},
		{name: "services-10000", rules: true, services: 10_000},
		{name: "services-44000", rules: true, services: 44_000},
		{name: "services-44000-counted", rules: true, services: 44_000, counted: true},
		{name: "chain-per-service-1", rules: true, services: 1, chainPerService: true},
		{name: "chain-per-service-64", rules: true, services: 64, chainPerService: true},
		{name: "chain-per-service-1000", rules: true, services: 1000, chainPerService: true},
	}
	takeTurns(b, nodes, func(round int) int { return round })
}

// BenchmarkLaterPacket measures the same for the later packets of 128 flows: what every packet of a Service pays, and
// again with the feature gate NFTProxyServiceCounters.
func BenchmarkLaterPacket(b *testing.B) {
	takeTurns(b, []*node{
		{name: "no-rules"},
		{name: "services-1", rules: true, services: 1},
		{name: "services-1-counted", rules: true, services: 1, counted: true},
		{name: "services-44000", rules: true, services: 44_000},
		{name: "services-44000-counted", rules: true, services: 44_000, counted: true},
	}, func(int) int { return 0 })
}

// BenchmarkDirectReturn measures what a Service with direct return costs packets that are not for it: to endpoints, and to
// another Service. Each node has a twin, whose difference is the noise.
func BenchmarkDirectReturn(b *testing.B) {
	var nodes []*node
	for range 2 {
		for _, n := range []node{
			{name: "forwarded", direct: true},
			{name: "forwarded-ipv6", direct: true, ip6: true},
			{name: "service"},
		} {
			n.rules, n.services = true, 1
			beside := n
			beside.name += "-beside-direct-return"
			beside.directReturn = true
			nodes = append(nodes, &n, &beside)
		}
	}
	inTurns(b, nodes)
}

// inTurns measures the first and the later packets of nodes and of their twins.
func inTurns(b *testing.B, nodes []*node) {
	b.Helper()
	for _, flows := range []struct {
		name string
		of   func(round int) int
	}{{"first", func(round int) int { return round }}, {"later", func(int) int { return 0 }}} {
		b.Run(flows.name, func(b *testing.B) { takeTurns(b, twins(nodes), flows.of) })
	}
}

// BenchmarkRefusedCounters measures what counting refused packets (NFTProxyRefusedCounters) costs packets that are served,
// and what somebody who watches refused packets costs them. Each node has a twin, whose difference is the noise.
func BenchmarkRefusedCounters(b *testing.B) {
	var nodes []*node
	for range 2 {
		nodes = append(nodes,
			&node{name: "services-1000", rules: true, services: 1000},
			&node{name: "services-1000-refused-counted", rules: true, services: 1000, refused: true},
			&node{name: "services-1000-counted", rules: true, services: 1000, counted: true},
			&node{name: "services-1000-watched", rules: true, services: 1000, watched: true})
	}
	inTurns(b, nodes)
}

// twins returns copies of the nodes, the second of each with a name of its own.
func twins(nodes []*node) (out []*node) {
	for i, n := range nodes {
		c := *n
		if i >= len(nodes)/2 {
			c.name += "-twin"
		}
		out = append(out, &c)
	}
	return out
}

// BenchmarkRefusedPacket measures packets that are refused because the ClusterIP does not have the port: with the counters
// of refused packets, with a rule that logs before the refusal while nobody listens, and while somebody watches.
func BenchmarkRefusedPacket(b *testing.B) {
	refused := func(n node) *node {
		n.rules, n.services, n.wrongPort = true, 1000, true
		return &n
	}
	var nodes []*node
	for range 2 {
		nodes = append(nodes, refused(node{name: "refused"}), refused(node{name: "refused-counted", refused: true}),
			refused(node{name: "refused-logged", logged: true}), refused(node{name: "refused-watched", watched: true}))
	}
	takeTurns(b, twins(nodes), func(round int) int { return round })
}

// takeTurns sends rounds of batches through the nodes in turns. flows returns the number of the flows of a round.
func takeTurns(b *testing.B, nodes []*node, flows func(round int) int) {
	b.Helper()
	for _, n := range nodes {
		n.setUp(b)
	}
	runtime.LockOSThread()
	pin(b)
	batches := make([]*packets, len(nodes))
	elapsed := make([][]time.Duration, len(nodes))
	for i, n := range nodes {
		batches[i] = newPackets(n)
	}
	round := 0
	for b.Loop() {
		for range rounds {
			if round%roundsOfFlows == 0 {
				for _, n := range nodes {
					n.deleteFlows(b)
				}
			}
			for i, n := range nodes {
				elapsed[i] = append(elapsed[i], batches[i].send(b, n, flows(round)))
			}
			round++
		}
	}
	for i, n := range nodes {
		if got := n.forwarded(b); got < round*batch && !n.wrongPort {
			b.Errorf("%s: %d packets of %d left the node", n.name, got, round*batch)
		}
		slices.Sort(elapsed[i])
		b.ReportMetric(float64(elapsed[i][len(elapsed[i])/20].Nanoseconds())/batch, n.name+"-ns")
		b.ReportMetric(float64(elapsed[i][0].Nanoseconds())/batch, n.name+"-min-ns")
	}
}

// pin keeps the thread, and with it the packets that it sends, on one processor.
func pin(b *testing.B) {
	b.Helper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		b.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		b.Fatal(err)
	}
}

// packets is a batch of packets for one system call.
type packets struct {
	frames   [batch][]byte
	iovecs   [batch]unix.Iovec
	messages [batch]message
}

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

func newPackets(n *node) *packets {
	p := &packets{}
	for i := range p.frames {
		p.frames[i] = frame(n.mac, n.destination(i))
		p.iovecs[i] = unix.Iovec{Base: &p.frames[i][0]}
		p.iovecs[i].SetLen(len(p.frames[i]))
		p.messages[i].header.Iov = &p.iovecs[i]
		p.messages[i].header.SetIovlen(1)
	}
	return p
}

// Offsets and lengths in a frame.
const (
	ipHeader  = 14
	ip4Len    = 20
	ip6Len    = 40
	udpLen    = 8
	ip4Source = ipHeader + 12
	ip6Source = ipHeader + 8
)

// frame returns an Ethernet frame with an empty UDP datagram to the destination. Its source is not set.
func frame(device net.HardwareAddr, to netip.AddrPort) []byte {
	kind, ip := uint16(unix.ETH_P_IP), make([]byte, ip4Len)
	if to.Addr().Is4() {
		ip[0], ip[3], ip[8], ip[9] = 0x45, ip4Len+udpLen, 64, unix.IPPROTO_UDP
	} else {
		kind, ip = unix.ETH_P_IPV6, make([]byte, ip6Len)
		ip[0], ip[5], ip[6], ip[7] = 0x60, udpLen, unix.IPPROTO_UDP, 64
	}
	copy(ip[len(ip)-len(to.Addr().AsSlice()):], to.Addr().AsSlice())
	f := make([]byte, ipHeader)
	copy(f, device)
	binary.BigEndian.PutUint16(f[12:], kind)
	f = append(f, ip...)
	f = append(f, 0, 0)
	f = binary.BigEndian.AppendUint16(f, to.Port())
	return append(f, 0, udpLen, 0, 0)
}

// setSource makes a frame one of a flow.
func setSource(f []byte, from netip.AddrPort) {
	udp := len(f) - udpLen
	binary.BigEndian.PutUint16(f[udp:], from.Port())
	if from.Addr().Is6() { // which has no checksum in its header, and always one in that of UDP
		copy(f[ip6Source:], from.Addr().AsSlice())
		binary.BigEndian.PutUint16(f[udp+6:], 0)
		pseudo := append([]byte{0, unix.IPPROTO_UDP, 0, udpLen}, f[ip6Source:]...)
		binary.BigEndian.PutUint16(f[udp+6:], checksum(pseudo))
		return
	}
	copy(f[ip4Source:], from.Addr().AsSlice())
	binary.BigEndian.PutUint16(f[ipHeader+10:], 0)
	binary.BigEndian.PutUint16(f[ipHeader+10:], checksum(f[ipHeader:udp]))
}

// send sends the batch in flows that were not there before, and returns how long the system call took.
func (p *packets) send(b *testing.B, n *node, round int) time.Duration {
	for i, f := range p.frames {
		flow := round*batch + i
		setSource(f, netip.AddrPortFrom(n.addr("192.0.2.1", flow>>15), uint16(1024+flow&(1<<15-1))))
	}
	begin := time.Now()
	sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(n.socket), uintptr(unsafe.Pointer(&p.messages[0])), batch, 0, 0, 0)
	took := time.Since(begin)
	if errno != 0 || sent != batch {
		b.Fatalf("%s: %d of %d packets sent: %v", n.name, sent, batch, errno)
	}
	return took
}

// checksum is the Internet checksum (RFC 1071).
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
