package nodeaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// answerTimeout is how long the kernel may take to list the routes.
const answerTimeout = 10 * time.Second

var addressFamilies = map[model.Family]uint8{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}

// Local returns the addresses of an IP family that are the machine's own for the kernel, as for nft's "fib daddr type
// local": the routes of type local in the routing table local. netNS is the file descriptor of the network namespace,
// or 0 for the current one. Kernels before 4.20 list other routes too, which Local ignores.
func Local(netNS int, family model.Family) ([]netip.Prefix, error) {
	prefixes, err := local(netNS, family)
	if err != nil {
		return nil, fmt.Errorf("list the local %s addresses: %w", family, err)
	}
	return prefixes, nil
}

func local(netNS int, family model.Family) ([]netip.Prefix, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netNS, Strict: true})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump},
		Data:   header{family: addressFamilies[family], table: unix.RT_TABLE_LOCAL, typ: unix.RTN_LOCAL}.encode(),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // no table: no interface ever had an address
	}
	var prefixes []netip.Prefix
	for _, m := range messages {
		if prefix, ok := decode(m.Data, addressFamilies[family]); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, err
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

// decode returns the destination of a route. There is none if the route is not a local one of the family.
func decode(message []byte, family uint8) (destination netip.Prefix, ok bool) {
	if len(message) < unix.SizeofRtMsg {
		return destination, false
	}
	h := header{family: message[0], bits: message[1], table: message[4], typ: message[7]}
	if h.family != family || h.table != unix.RT_TABLE_LOCAL || h.typ != unix.RTN_LOCAL {
		return destination, false
	}
	addr := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	attributes, err := netlink.NewAttributeDecoder(message[unix.SizeofRtMsg:])
	if err != nil {
		return destination, false
	}
	bits := addr.BitLen()
	for attributes.Next() {
		if attributes.Type() == unix.RTA_DST {
			addr, _ = netip.AddrFromSlice(attributes.Bytes())
		}
	}
	if addr.BitLen() != bits {
		return destination, false // of another length than the family's addresses
	}
	destination, err = addr.Prefix(int(h.bits))
	return destination, err == nil
}
