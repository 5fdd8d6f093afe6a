package nodeaddr

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// answerTimeout bounds the time in which the kernel lists the routes.
const answerTimeout = 10 * time.Second

var addressFamilies = map[model.Family]uint8{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}

// Local returns the addresses of an IP family that are the machine's own for the kernel, as for nft's "fib daddr type
// local": the routes of type local in the routing table local. netNS is the file descriptor of the network namespace,
// or 0 for the current one.
func Local(netNS int, family model.Family) (prefixes []netip.Prefix, err error) {
	for r, err := range routes(netNS, header{family: addressFamilies[family], table: unix.RT_TABLE_LOCAL, typ: unix.RTN_LOCAL}) {
		if err != nil {
			return nil, fmt.Errorf("list the local %s addresses: %w", family, err)
		}
		if prefix, ok := r.destination(); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, nil
}

// header holds the used fields of a struct rtmsg.
type header struct {
	family, bits, table, typ uint8
}

func (h header) encode() []byte {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1], b[4], b[7] = h.family, h.bits, h.table, h.typ
	return b
}

type route struct {
	header
	attributes []byte
}

// routes lists the routes of a family, a type and a table, as they arrive. The kernel leaves out the others.
func routes(netNS int, wanted header) iter.Seq2[route, error] {
	return func(yield func(route, error) bool) {
		conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netNS, Strict: true})
		if err != nil {
			yield(route{}, err)
			return
		}
		defer conn.Close() // closing twice is harmless
		_, err = conn.Send(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump},
			Data:   wanted.encode(),
		})
		if err = errors.Join(err, conn.SetReadDeadline(time.Now().Add(answerTimeout))); err != nil {
			yield(route{}, err)
			return
		}
		for m, err := range conn.ReceiveIter() {
			if errors.Is(err, unix.ENOENT) {
				return // no table: no interface ever had an address
			}
			if r, ok := wanted.decode(m.Data); (ok || err != nil) && !yield(r, err) {
				conn.Close() // or the iterator reads the rest of the listing
				return
			}
		}
	}
}

// decode reads a message. ok is false if its route is not of the family, the table and the type.
func (h header) decode(message []byte) (r route, ok bool) {
	if len(message) < unix.SizeofRtMsg {
		return r, false
	}
	h.bits = message[1]
	return route{h, message[unix.SizeofRtMsg:]}, message[0] == h.family && message[4] == h.table && message[7] == h.typ
}

// destination returns the prefix of a route, if it is one of the family.
func (r route) destination() (netip.Prefix, bool) {
	addr := netip.IPv4Unspecified()
	if r.family == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	bits := addr.BitLen()
	if to := netlinkattr.Find(r.attributes, unix.RTA_DST); to != nil {
		addr, _ = netip.AddrFromSlice(to)
	}
	if addr.BitLen() != bits {
		return netip.Prefix{}, false
	}
	p, err := addr.Prefix(int(r.bits))
	return p, err == nil
}
