// Command flowtable measures what an established packet of a Service costs a node, with and without a flowtable.
// docs/measurements.md has the results. It makes network namespaces, so the machine should be a virtual one.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	flows   = 64 // connections of each kind, and packets in a batch
	payload = 18
)

var (
	layouts  = []string{"veth", "bridge", "bridge-netfilter", "vxlan"}
	variants = []string{"sent", "received", "plain", "fast", "ports", "rules"}
	senders  = []string{"client", "pod"}
)

// A node has packet sockets in the namespaces of its client and its pod.
type node struct {
	name, number string
	sockets      [2]int
}

// A kind is one of packets.
type kind struct {
	ip6    bool
	proto  byte
	sender int
}

func main() {
	rounds := flag.Int("rounds", 200, "batches of each kind to each node")
	rules := flag.String("rules", "rules.nft", "file that ruledump compile has written")
	flag.Parse()
	runtime.LockOSThread()
	var nodes []node
	for _, layout := range layouts {
		for _, variant := range variants {
			nodes = append(nodes, newNode(strconv.Itoa(len(nodes)), layout, variant, *rules))
		}
	}
	fmt.Println("ns for each packet, least, 5th percentile and median of", *rounds, "batches;", variants, "and the ratios of the last three to plain, less sent and less received")
	for _, ip6 := range []bool{false, true} {
		for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			for _, n := range nodes {
				n.connect(kind{ip6: ip6, proto: proto})
			}
			for sender := range senders {
				kind{ip6, proto, sender}.measure(nodes, *rounds)
			}
		}
	}
	for _, n := range nodes {
		out, err := exec.Command("sh", "-c", proof, n.number).Output()
		check(err)
		fmt.Println(n.name, "packets to the client and to the pod, forwarded by IPv4 and IPv6:", strings.Fields(string(out)))
	}
}

// proof prints how many packets came to the client and to the pod of node $0, and how many of them IPv4 and IPv6 forwarded.
const proof = `for ns in c p; do ip netns exec $ns$0 nft list ruleset | awk '/counter/ { print $3 }'; done
ip netns exec n$0 awk '$1 == "Ip:" && $7 != "ForwDatagrams" { print $7 } $1 == "Ip6OutForwDatagrams" { print $2 }' /proc/net/snmp /proc/net/snmp6`

func newNode(number, layout, variant, rules string) node {
	if out, err := exec.Command("sh", "node.sh", number, layout, variant, rules).CombinedOutput(); err != nil {
		log.Fatalf("node.sh %s %s: %v: %s", layout, variant, err, out)
	}
	device := "eth0"
	if layout == "vxlan" {
		device = "vxlan0"
	}
	return node{layout + " " + variant, number, [2]int{socket("c"+number, "eth0"), socket("p"+number, device)}}
}

// socket returns one that sends by a device.
func socket(namespace, device string) int {
	f, err := os.Open("/run/netns/" + namespace)
	check(err)
	defer f.Close()
	check(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	check(err)
	check(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	request, err := unix.NewIfreq(device)
	check(err)
	check(unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request))
	check(unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: int(request.Uint32())}))
	return fd
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// frame returns a packet as a pod sends it, whose checksum is left to the device. The arguments are of TCP.
func (k kind) frame(flow int, flags byte, seq, ack uint32, payload int) []byte {
	from, to := netip.MustParseAddrPort("10.244.0.9:1024"), netip.MustParseAddrPort("10.96.0.10:80")
	endpoint := netip.MustParseAddrPort("10.244.0.5:8080")
	if k.ip6 {
		from, to = netip.MustParseAddrPort("[fd00:10:244::9]:1024"), netip.MustParseAddrPort("[fd00:10:96::a]:80")
		endpoint = netip.MustParseAddrPort("[fd00:10:244::5]:8080")
	}
	from = netip.AddrPortFrom(from.Addr(), from.Port()+uint16(flow))
	if k.sender == 1 {
		from, to = endpoint, from
	}
	be := binary.BigEndian
	transport := be.AppendUint16(be.AppendUint16(nil, from.Port()), to.Port())
	checksum := len(transport) + 2
	if k.proto == unix.IPPROTO_TCP {
		transport = append(be.AppendUint32(be.AppendUint32(transport, seq), ack), 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
		checksum = 16
	} else {
		transport = append(be.AppendUint16(transport, uint16(8+payload)), 0, 0)
	}
	transport = append(transport, make([]byte, payload)...)
	addresses := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	be.PutUint16(transport[checksum:], sum(append(addresses, 0, k.proto, byte(len(transport)>>8), byte(len(transport)))))
	var ip []byte
	etherType := uint16(unix.ETH_P_IP)
	if k.ip6 {
		etherType = unix.ETH_P_IPV6
		ip = append([]byte{0x60, 0, 0, 0, 0, byte(len(transport)), k.proto, 64}, addresses...)
	} else {
		ip = append([]byte{0x45, 0, 0, byte(20 + len(transport)), 0, 0, 0x40, 0, 64, k.proto, 0, 0}, addresses...)
		be.PutUint16(ip[10:], ^sum(ip))
	}
	f := []byte{1, 0, 0, 0, 0, 0, byte(14 + len(ip)), 0, byte(checksum), 0} // struct virtio_net_hdr
	f = append(f, 2, 0, 0, 0, 0, byte(1+2*k.sender), 2, 0, 0, 0, 0, byte(2+2*k.sender))
	return slices.Concat(be.AppendUint16(f, etherType), ip, transport)
}

// sum is the Internet checksum (RFC 1071) without its complement.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// connect opens connections of a kind: of UDP, by a packet each way.
func (n node) connect(k kind) {
	const syn, ack = 2, 16
	reply := k
	reply.sender = 1
	for flow := range flows {
		for _, packet := range []struct {
			sender int
			frame  []byte
		}{{0, k.frame(flow, syn, 1000, 0, 0)}, {1, reply.frame(flow, syn|ack, 2000, 1001, 0)}, {0, k.frame(flow, ack, 1001, 2001, 0)}} {
			_, err := unix.Write(n.sockets[packet.sender], packet.frame)
			check(err)
		}
	}
}

// measure sends batches to the nodes in turns.
func (k kind) measure(nodes []node, rounds int) {
	// The kernel's struct mmsghdr.
	type message struct {
		header unix.Msghdr
		length uint64
	}
	var messages [flows]message
	var iovecs [flows]unix.Iovec
	for flow := range flows {
		f := k.frame(flow, 16, uint32(1001+1000*k.sender), uint32(2001-1000*k.sender), payload)
		iovecs[flow] = unix.Iovec{Base: &f[0], Len: uint64(len(f))}
		messages[flow].header = unix.Msghdr{Iov: &iovecs[flow], Iovlen: 1}
	}
	took := make([][]float64, len(nodes))
	for round := range rounds + 2 { // the first ones are not counted
		for i, n := range nodes {
			begin := time.Now()
			sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(n.sockets[k.sender]), uintptr(unsafe.Pointer(&messages[0])), flows, 0, 0, 0)
			duration := time.Since(begin)
			if sent != flows {
				log.Panic(sent, errno)
			}
			if round >= 2 {
				took[i] = append(took[i], float64(duration.Nanoseconds())/flows)
			}
		}
	}
	for l, layout := range layouts {
		row := fmt.Sprintf("| %s | IPv%d %s from the %s |", layout, map[bool]int{false: 4, true: 6}[k.ip6], map[byte]string{6: "TCP", 17: "UDP"}[k.proto], senders[k.sender])
		at := func(v, percent int) float64 { return took[l*len(variants)+v][rounds*percent/100] }
		for v := range variants {
			slices.Sort(took[l*len(variants)+v])
			row += fmt.Sprintf(" %.0f, %.0f, %.0f |", at(v, 0), at(v, 5), at(v, 50))
		}
		for _, less := range []int{0, 1} {
			for v := 3; v < len(variants); v++ {
				row += " "
				for _, percent := range []int{0, 5, 50} {
					row += fmt.Sprintf("%.2f, ", (at(v, percent)-at(less, percent))/(at(2, percent)-at(less, percent)))
				}
				row = strings.TrimSuffix(row, ", ") + " |"
			}
		}
		fmt.Println(row)
	}
}
