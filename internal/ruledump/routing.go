package ruledump

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxRoutes bounds the routes that are read.
const maxRoutes = 10_000

var netlinkFamilies = map[nft.Family]int{nft.FamilyIP: netlink.FAMILY_V4, nft.FamilyIP6: netlink.FAMILY_V6}

// routeTypes are the words of ip-route(8) for the kernel's numbers.
var routeTypes = map[int]evaluator.RouteType{
	unix.RTN_LOCAL: evaluator.RouteLocal, unix.RTN_BROADCAST: evaluator.RouteBroadcast, unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast",
	unix.RTN_BLACKHOLE: evaluator.RouteBlackhole, unix.RTN_UNREACHABLE: evaluator.RouteUnreachable, unix.RTN_PROHIBIT: evaluator.RouteProhibit,
	unix.RTN_THROW: evaluator.RouteThrow, unix.RTN_NAT: "nat",
}

// Actions of routing rules (FR_ACT_*).
var ruleActions = map[uint8]evaluator.RouteType{6: evaluator.RouteBlackhole, 7: evaluator.RouteUnreachable, 8: evaluator.RouteProhibit}

const actionLookup = 1

// addRouting reads the routes of all tables, the routing rules, and the policies of IPsec. What cannot be read leaves the way of
// packets unknown.
func (s *Snapshot) addRouting(links map[int]netlink.Link) {
	for _, family := range nft.Families {
		number := netlinkFamilies[family]
		routes, err := netlink.RouteListFiltered(number, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		rules, rulesErr := netlink.RuleList(number)
		actions, actionsErr := actionsOfRules(number)
		if err = cmp.Or(err, rulesErr, actionsErr); err == nil && len(actions) != len(rules) {
			err = errors.New("they changed while they were read")
		}
		if err != nil && s.IPv4Only && family == nft.FamilyIP6 {
			continue
		}
		if len(s.Host.Routes)+len(routes) > maxRoutes {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("routes: more than the first %d", maxRoutes))
			err = fmt.Errorf("more than %d routes", maxRoutes)
			routes = routes[:maxRoutes-len(s.Host.Routes)]
		}
		for _, r := range routes {
			if r.Flags&unix.RTNH_F_DEAD == 0 {
				s.Host.Routes = append(s.Host.Routes, routeOf(r, family, links))
			}
		}
		if err != nil {
			s.Host.Rules = append(s.Host.Rules, evaluator.RoutingRule{Family: family, Unknown: err.Error()})
			continue
		}
		for i, r := range rules {
			r.Type = actions[i]
			s.Host.Rules = append(s.Host.Rules, routingRule(family, r))
		}
	}
	s.addPolicies()
	if err := s.addDevices(links); err != nil {
		s.NotLookedAt = append(s.NotLookedAt, "ip_forward and rp_filter: "+err.Error())
	}
	s.addFailedNeighbours(links)
	s.Host.Ask = newAsker(links, s.Host.Rules).packet
}

// routeOf converts a route of netlink's.
func routeOf(r netlink.Route, family nft.Family, links map[int]netlink.Link) evaluator.Route {
	route := evaluator.Route{Destination: prefixIn(r.Dst, family), Type: routeTypes[r.Type], Table: uint32(r.Table), MTU: uint32(r.MTU)}
	if r.Tos != 0 {
		route.Type = "tos" // for packets with this DSCP alone
	}
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	for _, h := range hops {
		if h.Flags&unix.RTNH_F_DEAD == 0 {
			route.Hops = append(route.Hops, hopOf(h, links))
		}
	}
	if len(route.Hops) == 1 {
		route.Gateway, route.Interface, route.Hops = route.Hops[0].Gateway, route.Hops[0].Interface, nil
	}
	return route
}

func hopOf(h *netlink.NexthopInfo, links map[int]netlink.Link) (out evaluator.Hop) {
	if l := links[h.LinkIndex]; l != nil {
		out.Interface = l.Attrs().Name
	}
	gateway := h.Gw
	if via, is := h.Via.(*netlink.Via); is && gateway == nil {
		gateway = via.Addr
	}
	if addr, ok := netip.AddrFromSlice(gateway); ok {
		out.Gateway = addr.Unmap()
	}
	return out
}

// actionsOfRules returns what the routing rules do, in their order: netlink does not say.
func actionsOfRules(family int) (actions []uint8, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETRULE, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(family))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWRULE)
	for _, m := range messages {
		actions = append(actions, nl.DeserializeRtMsg(m).Type)
	}
	return actions, err
}

// prefixIn returns a prefix of netlink's; all addresses of the family if there is none.
func prefixIn(n *net.IPNet, family nft.Family) netip.Prefix {
	if n != nil {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			return p
		}
	}
	if family == nft.FamilyIP {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func routingRule(family nft.Family, r netlink.Rule) evaluator.RoutingRule {
	out := evaluator.RoutingRule{
		Family: family, From: prefixIn(r.Src, family), To: prefixIn(r.Dst, family), Iif: r.IifName,
		Mark: r.Mark, Mask: ^uint32(0), Table: uint32(r.Table), Type: ruleActions[r.Type],
	}
	switch {
	case r.Mask != nil:
		out.Mask = *r.Mask
	case r.Mark == 0:
		out.Mask = 0
	}
	var conditions []string
	for text, is := range map[string]bool{
		"not": r.Invert, "tos": r.Tos != 0, "tun_id": r.TunID != 0, "oif " + r.OifName: r.OifName != "", "uidrange": r.UIDRange != nil,
		"ipproto": r.IPProto != 0, "sport": r.Sport != nil, "dport": r.Dport != nil, "suppress_prefixlength": r.SuppressPrefixlen >= 0,
		"suppress_ifgroup": r.SuppressIfgroup >= 0, "goto": r.Type != actionLookup && out.Type == "", "l3mdev": r.Type == actionLookup && r.Table == 0,
	} {
		if is {
			conditions = append(conditions, text)
		}
	}
	slices.Sort(conditions)
	if out.Unknown = strings.Join(conditions, " "); r.Invert {
		out.From, out.To, out.Iif, out.Mask = netip.Prefix{}, netip.Prefix{}, "", 0
	}
	return out
}

// addPolicies reads the policies of IPsec.
func (s *Snapshot) addPolicies() {
	policies, err := nodeaddr.Policies()
	if err != nil {
		s.NotLookedAt = append(s.NotLookedAt, "policies of IPsec: "+err.Error())
	}
	for _, p := range policies {
		if direction, is := policyDirections[p.Direction]; is { // the others are of sockets
			s.Host.Policies = append(s.Host.Policies, evaluator.Policy{
				Direction: direction, Source: p.Source, Destination: p.Destination, Protocol: p.Protocol, SourcePort: p.SourcePort, DestinationPort: p.DestinationPort,
				Block: p.Block, Transform: p.Transform, Unknown: p.Conditional,
			})
		}
	}
}

var policyDirections = map[netlink.Dir]string{netlink.XFRM_DIR_IN: "in", netlink.XFRM_DIR_OUT: "out", netlink.XFRM_DIR_FWD: "fwd"}
