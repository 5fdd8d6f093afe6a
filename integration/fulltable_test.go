package integration

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	tracking "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// fillTable adds entries to the host's connection tracking table until the kernel refuses one. The limit is the machine's, and
// each namespace has a count of its own. The entries are assured: the kernel drops others early, to make room.
func fillTable(t *testing.T, h *lab.Host) {
	t.Helper()
	err := h.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		const batch = 256 // an acknowledgement of each entry would take ten times as long
		entries := &entryMaker{server: netip.MustParseAddr("203.0.113.10")}
		for ; limit > batch; limit -= batch {
			if _, err := conn.SendMessages(entries.next(batch)); err != nil {
				return err
			}
		}
		single, err := tracking.Dial(nil)
		if err != nil {
			return err
		}
		defer single.Close()
		for port := uint16(1); err == nil; port++ {
			err = single.Create(tracking.NewFlow(unix.IPPROTO_UDP, assured, filler, netip.MustParseAddr("203.0.113.9"), port, 9, 600, 0))
		}
		return err
	})
	if !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("the kernel refuses an entry beyond the limit: %v, want %v", err, unix.ENOMEM)
	}
}

const assured = tracking.StatusConfirmed | tracking.StatusAssured | tracking.StatusSeenReply

// filler is the client of the entries.
var filler = netip.MustParseAddr("198.51.100.7")

// entryMaker makes entries of UDP, each of another port of the client or to another server.
type entryMaker struct {
	server netip.Addr
	port   uint16
}

// next returns the messages that make n entries.
func (m *entryMaker) next(n int) (messages []netlink.Message) {
	for range n {
		if m.port++; m.port == 0 {
			m.server = m.server.Next()
		}
		client, server := netip.AddrPortFrom(filler, m.port), netip.AddrPortFrom(m.server, 9)
		ae := netlink.NewAttributeEncoder()
		ae.ByteOrder = binary.BigEndian
		ae.Nested(1, tuple(client, server)) // CTA_TUPLE_ORIG
		ae.Nested(2, tuple(server, client)) // CTA_TUPLE_REPLY
		ae.Uint32(3, uint32(assured))       // CTA_STATUS
		ae.Uint32(7, 600)                   // CTA_TIMEOUT
		attributes, _ := ae.Encode()        // no attribute is too long
		messages = append(messages, netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Request | netlink.Create},
			Data:   append([]byte{unix.AF_INET, 0, 0, 0}, attributes...),
		})
	}
	return messages
}

// tuple encodes one direction of an entry.
func tuple(from, to netip.AddrPort) func(*netlink.AttributeEncoder) error {
	return func(ae *netlink.AttributeEncoder) error {
		ae.Nested(1, func(ip *netlink.AttributeEncoder) error { // CTA_TUPLE_IP
			ip.Bytes(1, from.Addr().AsSlice())
			ip.Bytes(2, to.Addr().AsSlice())
			return nil
		})
		ae.Nested(2, func(ports *netlink.AttributeEncoder) error { // CTA_TUPLE_PROTO
			ports.Uint8(1, unix.IPPROTO_UDP)
			ports.Uint16(2, from.Port())
			ports.Uint16(3, to.Port())
			return nil
		})
		return nil
	}
}
