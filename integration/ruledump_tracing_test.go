package integration

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// send sends datagrams of one connection to the Service, and returns the client's address.
func (r *routed) send(t *testing.T, host *lab.Host, from string, datagrams int) netip.AddrPort {
	t.Helper()
	client, err := host.ListenUDP(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range datagrams {
		if _, err := client.WriteToUDPAddrPort([]byte("question"), netip.MustParseAddrPort("10.96.0.77:53")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond) // so that a limit of two in a second lets each be traced
	}
	return netip.MustParseAddrPort(client.LocalAddr().String())
}

// tracedUntil returns the packets of a trace once there are so many.
func tracedUntil(t *testing.T, trace *lab.Process, n int) (packets []traced) {
	t.Helper()
	await.Until(t, "the packets are printed", func() error {
		if packets = tracedBy(t, trace); len(packets) < n {
			return fmt.Errorf("%d of %d", len(packets), n)
		}
		return nil
	})
	return packets
}

// reasons are those of the packets, in the order in which they were printed.
func reasons(packets []traced) (list []verb.Reason) {
	for _, p := range packets {
		list = append(list, p.Outcome.Reason)
	}
	return list
}

func TestRuledumpTracing(t *testing.T) {
	t.Parallel()
	const client, far = "10.244.1.250", "10.244.2.99"
	t.Run("a retransmission is none of explain's contradictions", func(t *testing.T) {
		r := newRouted(t)
		lab.Nft(t, r.Remote, "table ip silent {\n chain c { type filter hook input priority 0; drop; }\n}\n", "-f", "-")
		trace := startTrace(t, r.Node, "-o=json", "--to=shop/far", "--from="+client, "-n=2", "--for=1m")
		r.send(t, r.Client, client, 3)
		_ = dialled(t, r.Client, netip.MustParseAddr(client), netip.MustParseAddrPort("10.96.0.77:80"), "dropped")
		if err := trace.Wait(); err != nil { // after two connections, whatever the number of packets
			t.Fatal(err)
		}
		packets := tracedBy(t, trace)
		want := []verb.Reason{verb.ReasonServed, verb.ReasonUnanswered, verb.ReasonUnanswered, verb.ReasonServed}
		if got := reasons(packets); !slices.Equal(got, want) {
			t.Fatalf("the reasons are %s, want %s", got, want)
		}
		for _, p := range packets {
			if p.ExplainAgrees == nil || !*p.ExplainAgrees {
				t.Errorf("%s: explain says %s", p.Packet, p.ExplainSays)
			}
		}
		if got, want := packets[1].Outcome.Why, "retransmission: nothing has answered; look behind 10.244.2.6"; got != want {
			t.Errorf("why: %s, want %s", got, want)
		}
	})
	for _, tt := range []struct {
		name, change string
		want         verb.Reason
	}{
		{"rp_filter", "ipv4/conf/outside/rp_filter=1", verb.ReasonReversePath},
		{"ip_forward", "ipv4/ip_forward=0", verb.ReasonForwardingOff},
		{"a missing route", "route add unreachable 10.244.2.6/32", verb.ReasonUnreachable},
	} {
		t.Run("routing drops by "+tt.name, func(t *testing.T) {
			r := newRouted(t)
			r.ip(t, r.Outside, "addr add "+far+"/32 dev eth0")
			if !r.datagram(t, r.Outside, far, true) {
				t.Fatal("before the change no datagram arrives")
			}
			r.change(t, tt.change)
			trace := startTrace(t, r.Node, "-o=json", "--dropped", "--from="+far, "-n=1", "--for=1m")
			r.send(t, r.Outside, far, 1)
			if err := trace.Wait(); err != nil {
				t.Fatal(err)
			}
			p := tracedBy(t, trace)[0]
			if p.Outcome.Reason != tt.want || p.ExplainAgrees == nil || !*p.ExplainAgrees || !strings.HasPrefix(p.Outcome.Why, "no rule dropped it: ") {
				t.Errorf("%s: %s, want %s; why: %s; explain says %s", p.Packet, p.Outcome.Reason, tt.want, p.Outcome.Why, p.ExplainSays)
			}
		})
	}
	t.Run("new connections alone, and a capture", func(t *testing.T) {
		r := newRouted(t)
		file := filepath.Join(t.TempDir(), "packets.pcap")
		trace := startTrace(t, r.Node, "-o=json", "--new", "--to=shop/far", "-n=3", "--for=1m", "--pcap="+file)
		conn, err := r.Client.DialContext(t.Context(), "tcp", "10.96.0.77:80")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("later packets")); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		first := tracedUntil(t, trace, 1)
		r.send(t, r.Client, client, 1)
		r.send(t, r.Client, client, 1)
		if err := trace.Wait(); err != nil {
			t.Fatal(err)
		}
		want := []verb.Reason{verb.ReasonServed, verb.ReasonServed, verb.ReasonServed}
		if got := reasons(tracedBy(t, trace)); !slices.Equal(got, want) || len(first) != 1 {
			t.Errorf("the reasons are %s, want %s", got, want)
		}
		got := destinationsOf(t, file)
		if want := []string{"10.96.0.77", "10.244.2.6", "10.96.0.77", "10.244.2.6", "10.96.0.77", "10.244.2.6"}; !slices.Equal(got, want) {
			t.Errorf("the capture has packets to %s, want %s", got, want)
		}
	})
}

// destinationsOf reads the destinations of the IPv4 packets in a file of libpcap.
func destinationsOf(t *testing.T, file string) (to []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const fileHeader, recordHeader, linkType = 24, 16, 20
	if len(data) < fileHeader || binary.LittleEndian.Uint32(data) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(data[linkType:]) != 101 {
		t.Fatalf("the file begins with %x", data[:min(len(data), fileHeader)])
	}
	for data = data[fileHeader:]; len(data) > 0; {
		length := int(binary.LittleEndian.Uint32(data[8:]))
		packet := data[recordHeader : recordHeader+length]
		addr, _ := netip.AddrFromSlice(packet[16:20])
		to = append(to, addr.String())
		data = data[recordHeader+length:]
	}
	return to
}
