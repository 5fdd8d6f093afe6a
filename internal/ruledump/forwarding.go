package ruledump

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of RTM_NEWNETCONF (NETCONFA_*), and the index of "all".
const (
	netconfIndex, netconfForwarding, netconfRPFilter, netconfForceForwarding = 1, 2, 3, 9

	netconfAll = -1
)

// netconf are settings of an interface, by attribute.
type netconf map[uint16]int32

// netconfs reads the settings of all interfaces in a family, by index.
func netconfs(family int) (map[int32]netconf, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(family))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNETCONF)
	if err != nil {
		return nil, err
	}
	const header = 4 // struct netconfmsg, padded
	out := map[int32]netconf{}
	for _, m := range messages {
		if len(m) < header {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[header:])
		if err != nil {
			return nil, err
		}
		settings := netconf{}
		for _, a := range attributes {
			if len(a.Value) == 4 {
				settings[a.Attr.Type] = int32(nl.NativeEndian().Uint32(a.Value))
			}
		}
		out[settings[netconfIndex]] = settings
	}
	return out, nil
}

// addDevices reads which interfaces forward, rp_filter and MTUs.
func (s *Snapshot) addDevices(links map[int]netlink.Link) error {
	ipv4, err := netconfs(netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	ipv6, err := netconfs(netlink.FAMILY_V6)
	if err != nil && !s.IPv4Only {
		return err
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	onOff := func(on bool) evaluator.Setting {
		if on {
			return evaluator.On
		}
		return evaluator.Off
	}
	s.Host.Devices = map[string]evaluator.Device{}
	for index, l := range links {
		device := evaluator.Device{MTU: uint32(l.Attrs().MTU)}
		device.NoIPv4 = !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.LinkIndex == index })
		if settings, is := ipv4[int32(index)]; is {
			device.Forwarding = onOff(settings[netconfForwarding] > 0)
			modes := []evaluator.Setting{evaluator.Off, evaluator.Strict, evaluator.Loose}
			device.RPFilter = modes[min(max(settings[netconfRPFilter], ipv4[netconfAll][netconfRPFilter], 0), 2)]
		}
		if settings, is := ipv6[int32(index)]; is { // a device's own setting only makes it a router
			device.Forwarding6 = onOff(ipv6[netconfAll][netconfForwarding] > 0 || settings[netconfForceForwarding] > 0)
		}
		s.Host.Devices[l.Attrs().Name] = device
	}
	return nil
}

// addFailedNeighbours reads which next hops do not answer.
func (s *Snapshot) addFailedNeighbours(links map[int]netlink.Link) {
	for _, family := range netlinkFamilies {
		neighbours, _ := netlink.NeighList(0, family) // none are known then
		for _, n := range neighbours {
			addr, ok := netip.AddrFromSlice(n.IP)
			if l := links[n.LinkIndex]; ok && l != nil && n.State == netlink.NUD_FAILED && len(s.Host.FailedNeighbours) < maxRoutes {
				s.Host.FailedNeighbours = append(s.Host.FailedNeighbours, evaluator.Hop{Gateway: addr.Unmap(), Interface: l.Attrs().Name})
			}
		}
	}
}

// Asker asks the kernel for routes (RTM_GETROUTE). The kernel knows VRFs, and rules and routes that are not modelled. An Asker is
// safe for concurrent use.
type Asker struct {
	links map[int]netlink.Link
	// refuses says, for each family, that rules look at more than what can be asked.
	refuses map[nft.Family]bool
}

// NewAsker asks in the current network namespace.
func NewAsker() (*Asker, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	a := &Asker{links: map[int]netlink.Link{}}
	for _, l := range links {
		a.links[l.Attrs().Index] = l
	}
	return a, nil
}

func newAsker(links map[int]netlink.Link, rules []evaluator.RoutingRule) *Asker {
	a := &Asker{links: links, refuses: map[nft.Family]bool{}}
	for _, r := range rules {
		for _, condition := range []string{"tos", "tun_id", "uidrange", "ipproto", "sport", "dport"} {
			a.refuses[r.Family] = a.refuses[r.Family] || strings.Contains(r.Unknown, condition)
		}
	}
	return a
}

// failures are the kernel's errors for packets that it does not route.
var failures = map[unix.Errno]evaluator.RoutingFailure{
	unix.ENETUNREACH: evaluator.NoRoute, unix.EHOSTUNREACH: evaluator.Unreachable, unix.EACCES: evaluator.Prohibited, unix.EXDEV: evaluator.ReversePath,
	unix.EINVAL: evaluator.Martian, // since Linux 6.13 also in place of EXDEV; and a route of type blackhole
}

// packet asks for the route of a packet: the route's own prefix, and all its hops.
func (a *Asker) packet(p evaluator.Packet) (out evaluator.Answer, err error) {
	if a.refuses[familyOf(p.Destination.Addr())] {
		return out, errors.New("a routing rule looks at more than addresses, interfaces and marks")
	}
	options := &netlink.RouteGetOptions{SrcAddr: p.Source.Addr().AsSlice(), Mark: p.Mark, FIBMatch: true}
	for index, l := range a.links {
		if l.Attrs().Name == p.Interface {
			options.IifIndex = index
		}
	}
	if !p.Local && options.IifIndex == 0 {
		return out, fmt.Errorf("there is no interface %s", p.Interface)
	}
	return a.get(p.Destination.Addr(), options)
}

// RouteTo asks for the route and the hop by which this machine itself reaches an address.
func (a *Asker) RouteTo(addr netip.Addr) (evaluator.Answer, error) {
	return a.get(addr, nil)
}

func (a *Asker) get(to netip.Addr, options *netlink.RouteGetOptions) (out evaluator.Answer, err error) {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), options)
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && failures[errno] != "":
		out.Failure = failures[errno]
		return out, nil
	case err != nil:
		return out, err
	case len(routes) != 1:
		return out, fmt.Errorf("the kernel answers %d routes", len(routes))
	}
	out.Route = routeOf(routes[0], familyOf(to), a.links)
	return out, nil
}

func familyOf(addr netip.Addr) nft.Family {
	if addr.Is6() {
		return nft.FamilyIP6
	}
	return nft.FamilyIP
}
