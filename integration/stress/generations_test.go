package stress

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// packets is the number of new flows for each kind of change. Where packets can fall between two
// generations, a few of so many do, if the machine has two processors.
var packets = flag.Int("packets", 100_000, "how many packets are sent while the rules change in one way")

func TestGenerations(t *testing.T) {
	t.Run("no packet falls between two", testNoPacketFallsBetweenTwoGenerations)
}

// A packet that is on its way through the rules when a commit takes effect sees the rules of
// one generation and the elements of the next. It must find an endpoint all the same.
func testNoPacketFallsBetweenTwoGenerations(t *testing.T) {
	c := newCluster(t)
	probe := newProbe(t, c.Node, everyPacket)
	web := func(pods ...byte) *model.Changes {
		return only(service("web", model.TCP, model.IPv4, 10, pods...), service("web", model.TCP, model.IPv6, 10, pods...))
	}
	whole := func() *model.Changes {
		changes := full()
		changes.Ports = web(1, 2, 3).Ports
		return changes
	}
	// The proxy refills a map of so many endpoints, among them those of the other Service.
	many := service("many", model.TCP, model.IPv4, 11)
	for n := range uint32(60_000) {
		addr := binary.BigEndian.AppendUint32(nil, 10<<24|128<<16+n)
		many.Cluster = append(many.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), targetPort), Remote: true})
	}
	large := whole()
	large.Ports = maps.Clone(large.Ports)
	large.Ports[many.ID] = many
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, n int)
	}{
		{"one endpoint takes the place of another", func(t *testing.T, n int) {
			c.sync(t, [...]*model.Changes{web(1, 2, 3), web(1, 4, 3)}[n%2])
		}},
		{"an endpoint comes, or goes, and no other Service has as many", func(t *testing.T, n int) {
			c.sync(t, [...]*model.Changes{web(1, 2, 3), web(1, 2, 3, 4)}[n%2])
		}},
		{"all endpoints are others", func(t *testing.T, n int) {
			c.sync(t, [...]*model.Changes{web(1, 2, 3, 4, 5), web(6, 7)}[n%2])
		}},
		{"the proxy restarts", func(t *testing.T, n int) {
			c.restart(t)
			c.sync(t, whole())
		}},
		{"the proxy restarts, and refills the map of endpoints", func(t *testing.T, n int) {
			c.restart(t)
			c.sync(t, large)
		}},
		{"somebody else's change is undone", func(t *testing.T, n int) {
			c.meddle(t)
			if _, err := c.backend.Check(klog.NewContext(t.Context(), logr.Discard())); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.sync(t, whole())
			probe.reset(t)
			flood := startFlood(t, c.Client)
			changes := 0
			for ; flood.running(); changes++ {
				tt.change(t, changes)
			}
			sent := flood.wait(t)
			translated, missed := probe.await(t, sent)
			t.Logf("%d changes", changes)
			if missed > 0 {
				t.Errorf("of %d packets %d went to no endpoint, and %d to one", sent, missed, translated)
			}
		})
	}
}

// meddle changes the proxy's tables as somebody else might.
func (c *cluster) meddle(t *testing.T) {
	t.Helper()
	table := &nft.Table{Family: nft.FamilyIP, Name: compiler.TableName}
	step := nft.Step{Op: nft.AddChain, Table: table, Chain: &nft.Chain{Name: "foreign"}}
	if _, err := c.rules.Commit(t.Context(), nft.Transaction{Steps: []nft.Step{step}}); err != nil {
		t.Fatal(err)
	}
}

// everyPacket counts what becomes of packets to ClusterIPs. It drops them all: an entry in the
// connection tracking table is made when a packet leaves, so that each packet is the first
// of a new flow.
const everyPacket = `
table inet probe {
	counter translated { }
	counter missed { }
	chain forward {
		type filter hook forward priority -10
		ct status dnat counter name translated drop
		ip daddr 10.96.0.0/16 counter name missed drop
		ip6 daddr fd00:10:96::/112 counter name missed drop
	}
}
`

// flood sends packets to a Service of both families as fast as it can.
type flood struct {
	sent atomic.Int64
	done chan error
}

func startFlood(t *testing.T, from *lab.Host) *flood {
	t.Helper()
	f := &flood{done: make(chan error, 1)}
	go func() { f.done <- from.Do(f.run) }()
	return f
}

func (f *flood) running() bool { return len(f.done) == 0 }

// wait returns how many packets were sent.
func (f *flood) wait(t *testing.T) int {
	t.Helper()
	if err := <-f.done; err != nil {
		t.Fatal(err)
	}
	return int(f.sent.Load())
}

func (f *flood) run() error {
	var senders []func() error
	for _, family := range model.Families {
		send, closeSocket, err := rawSender(family)
		if err != nil {
			return err
		}
		defer closeSocket()
		senders = append(senders, send)
	}
	for n := range *packets {
		if err := senders[n%len(senders)](); errors.Is(err, unix.ENOBUFS) {
			continue
		} else if err != nil {
			return fmt.Errorf("send a packet: %w", err)
		}
		f.sent.Add(1)
	}
	return nil
}

// rawSender returns what sends a SYN from the client to the Service, written by hand, IP
// header included: nothing is quicker.
func rawSender(family model.Family) (send func() error, closeSocket func(), err error) {
	to := clusterIP(family, 10)
	domain, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: clusterIP(model.IPv4, 10).As4()})
	if family == model.IPv6 {
		domain, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, err
	}
	packet := syn(lab.ClientAddrs.Like(to), to)
	return func() error { return unix.Sendto(fd, packet, 0, address) }, func() { unix.Close(fd) }, nil
}

// syn is the first packet of a TCP connection from port 1024 to port 80.
func syn(from, to netip.Addr) []byte {
	const length = 20
	tcp := make([]byte, length)
	binary.BigEndian.PutUint16(tcp, 1024)
	binary.BigEndian.PutUint16(tcp[2:], 80)
	tcp[12] = length / 4 << 4
	tcp[13] = 2 // SYN
	binary.BigEndian.PutUint16(tcp[16:], checksum(from.AsSlice(), to.AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, length}, tcp))
	if from.Is4() {
		// The kernel fills in length and checksum (raw(7)).
		header := []byte{0: 0x45, 8: 64, 9: unix.IPPROTO_TCP, 19: 0}
		copy(header[12:], from.AsSlice())
		copy(header[16:], to.AsSlice())
		return append(header, tcp...)
	}
	header := []byte{0: 0x60, 5: length, 6: unix.IPPROTO_TCP, 7: 64, 39: 0}
	copy(header[8:], from.AsSlice())
	copy(header[24:], to.AsSlice())
	return append(header, tcp...)
}

// checksum is the internet checksum (RFC 1071) over parts of even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
