package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Obstacle says why packets to other machines, forwarded as they are to the next hop of the routes to some addresses, would
// not arrive or would leave unencrypted; empty if they arrive. Their own destination is another address, so a tunnel must
// be chosen by the route, and no IPsec policy may be meant for them. The network namespace is the thread's.
func Obstacle(to []netip.Addr) (string, error) {
	policies, err := outPolicies()
	if err != nil {
		return "", fmt.Errorf("list the xfrm policies: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	looked := map[int]bool{}
	for _, addr := range to {
		for _, policy := range policies {
			if policy.Contains(addr) {
				return fmt.Sprintf("an xfrm policy for %s would not match, so packets to %s would leave unencrypted", policy, addr), nil
			}
		}
		device, byRoute, err := routeTo(conn, addr)
		if err != nil {
			return "", fmt.Errorf("ask for the route to %s: %w", addr, err)
		}
		if device == 0 || byRoute || looked[device] {
			continue
		}
		looked[device] = true
		if obstacle, err := tunnel(conn, device); err != nil || obstacle != "" {
			return obstacle, err
		}
	}
	return "", nil
}

// routeTo returns the index of the device by which the route to an address leads; 0 for no route. byRoute says that the
// route itself has the tunnel (ip route … encap).
func routeTo(conn *netlink.Conn, to netip.Addr) (device int, byRoute bool, err error) {
	h := header{family: unix.AF_INET, bits: uint8(to.BitLen())}
	if to.Is6() {
		h.family = unix.AF_INET6
	}
	request := netlinkattr.List(h.encode())
	request.Bytes(unix.RTA_DST, to.AsSlice())
	answers, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request}, Data: request})
	if err != nil {
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
			return 0, false, nil // no such packet leaves: no route, or one of type unreachable, prohibit or blackhole
		}
		return 0, false, err
	}
	for _, m := range answers {
		if len(m.Data) < unix.SizeofRtMsg || m.Data[7] != unix.RTN_UNICAST {
			continue
		}
		r := route{attributes: m.Data[unix.SizeofRtMsg:]}
		return r.hop().device, netlinkattr.Find(r.attributes, unix.RTA_ENCAP_TYPE) != nil, nil
	}
	return 0, false, nil
}

// metadataAttributes have the attribute of IFLA_INFO_DATA that says, for each kind of device, that a program or a route
// chooses the tunnel of each packet.
var metadataAttributes = map[string]uint16{
	"vxlan": 25, "geneve": 6, "gre": 18, "gretap": 18, "erspan": 18, "ip6gre": 18, "ip6gretap": 18, "ip6erspan": 18, "ipip": 19, "ip6tnl": 19, "sit": 19,
}

// tunnel says why a device would not bring a packet to the next hop of its route; empty if it does.
func tunnel(conn *netlink.Conn, device int) (string, error) {
	request := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(request[4:], uint32(device))
	answers, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request}, Data: request})
	if err != nil {
		return "", fmt.Errorf("ask for device %d: %w", device, err)
	}
	for _, m := range answers {
		if len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attributes := m.Data[unix.SizeofIfInfomsg:]
		info := netlinkattr.Find(attributes, unix.IFLA_LINKINFO)
		if reason := byDestination(netlinkattr.Text(netlinkattr.Find(info, unix.IFLA_INFO_KIND)), netlinkattr.Find(info, unix.IFLA_INFO_DATA)); reason != "" {
			return fmt.Sprintf("device %s %s", netlinkattr.Text(netlinkattr.Find(attributes, unix.IFLA_IFNAME)), reason), nil
		}
	}
	return "", nil
}

// byDestination says how devices of a kind, with its data, choose the way of a packet by its own destination; empty if they
// do not.
func byDestination(kind string, data []byte) string {
	const tunType = 3 // IFLA_TUN_TYPE
	switch kind {
	case "wireguard":
		return "(wireguard) chooses the peer by the packet's destination"
	case "openvswitch":
		return "(Open vSwitch) may choose the tunnel by the packet's destination"
	case "xfrm", "vti", "vti6":
		return "(" + kind + ") chooses the IPsec policy by the packet's destination"
	case "tun":
		if t := netlinkattr.Find(data, tunType); len(t) == 1 && t[0] == unix.IFF_TUN {
			return "(tun) gives packets without their next hop to a program"
		}
	}
	if metadata := metadataAttributes[kind]; metadata != 0 {
		on := false
		_ = netlinkattr.Each(data, func(typ uint16, payload []byte) error { // a flag, or a byte
			on = on || typ == metadata && (len(payload) == 0 || payload[0] != 0)
			return nil
		})
		if on {
			return "(" + kind + " in metadata mode) may choose the tunnel by the packet's destination"
		}
	}
	return ""
}

// Of XFRM, which golang.org/x/sys/unix lacks.
const (
	xfrmGetPolicy    = 0x15
	xfrmPolicyOut    = 1
	xfrmTemplates    = 5
	xfrmFamily       = 40  // in struct xfrm_userpolicy_info
	xfrmPrefixLength = 42  //
	xfrmDirection    = 160 //
	xfrmAction       = 161 // 0 for allow
	xfrmPolicyLength = 168
)

// outPolicies returns the destinations of the IPsec policies for packets that leave: those that encrypt, or drop.
func outPolicies() (to []netip.Prefix, err error) {
	conn, err := netlink.Dial(unix.NETLINK_XFRM, nil)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // a kernel without IPsec
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	messages, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: xfrmGetPolicy, Flags: netlink.Request | netlink.Dump}})
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if len(m.Data) < xfrmPolicyLength || m.Data[xfrmDirection] != xfrmPolicyOut {
			continue
		}
		if m.Data[xfrmAction] == 0 && netlinkattr.Find(m.Data[xfrmPolicyLength:], xfrmTemplates) == nil {
			continue // it lets packets pass as they are
		}
		addr := netip.AddrFrom16([16]byte(m.Data[:16]))
		if binary.NativeEndian.Uint16(m.Data[xfrmFamily:]) == unix.AF_INET {
			addr = netip.AddrFrom4([4]byte(m.Data[:4]))
		}
		if p, err := addr.Prefix(int(m.Data[xfrmPrefixLength])); err == nil {
			to = append(to, p)
		}
	}
	return to, nil
}

// Inside returns the names, sorted, of the devices with networks for which this machine is the gateway, such as those of
// containers and virtual machines: devices with an address by which no route leads to another gateway, and none of the
// machine's addresses own. What enters by them comes from inside the node, or is the node's to translate. The network
// namespace is the thread's.
func Inside(own []netip.Addr) ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	names := map[int]string{}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // it went
		}
		inside := false
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && slices.Contains(own, p.Addr()) {
				inside = false
				break
			}
			inside = inside || err == nil && p.Addr().IsGlobalUnicast()
		}
		if inside && i.Flags&net.FlagLoopback == 0 {
			names[i.Index] = i.Name
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	for _, family := range addressFamilies {
		read := 0
		for r, err := range routes(0, header{family: family, table: unix.RT_TABLE_UNSPEC, typ: unix.RTN_UNICAST}) {
			if err != nil {
				return nil, fmt.Errorf("list the routes: %w", err)
			}
			if read++; read > maxRoutes {
				break
			}
			if hop := r.hop(); hop.hasGateway || r.bits == 0 {
				for _, device := range append(hop.more, hop.device) {
					delete(names, device)
				}
			}
		}
	}
	return slices.Sorted(maps.Values(names)), nil
}
