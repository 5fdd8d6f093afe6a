package foreign

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is a route, a routing rule or a policy.
type route struct {
	name        string
	add, remove func() error
}

// blackhole is the action of a routing rule (FR_ACT_BLACKHOLE).
const blackhole = 6

var routes = []route{
	{
		"ip route add local 192.0.2.10 dev lo",
		func() error { return netlink.RouteAdd(local("192.0.2.10/32")) },
		func() error { return netlink.RouteDel(local("192.0.2.10/32")) },
	},
	{
		"ip route add local 10.96.0.10 dev lo",
		func() error { return netlink.RouteAdd(local("10.96.0.10/32")) },
		func() error { return netlink.RouteDel(local("10.96.0.10/32")) },
	},
	{
		"ip rule add fwmark 0x1/0x1 blackhole",
		func() error { return netlink.RuleAdd(marked()) },
		func() error { return netlink.RuleDel(marked()) },
	},
	{
		"ip route add blackhole 10.244.1.6",
		func() error { return netlink.RouteAdd(blackholed("10.244.1.6/32")) },
		func() error { return netlink.RouteDel(blackholed("10.244.1.6/32")) },
	},
	{
		"ip xfrm policy add src 198.51.100.0/24 dst 0.0.0.0/0 dir fwd action block",
		func() error {
			return netlink.XfrmPolicyAdd(blocks(netlink.XFRM_DIR_FWD, "198.51.100.0/24", "0.0.0.0/0"))
		},
		func() error {
			return netlink.XfrmPolicyDel(blocks(netlink.XFRM_DIR_FWD, "198.51.100.0/24", "0.0.0.0/0"))
		},
	},
	{
		"ip xfrm policy add src 10.244.1.250 dst 0.0.0.0/0 dir fwd action block",
		func() error {
			return netlink.XfrmPolicyAdd(blocks(netlink.XFRM_DIR_FWD, "10.244.1.250/32", "0.0.0.0/0"))
		},
		func() error {
			return netlink.XfrmPolicyDel(blocks(netlink.XFRM_DIR_FWD, "10.244.1.250/32", "0.0.0.0/0"))
		},
	},
	{
		"ip xfrm policy add src 0.0.0.0/0 dst 10.244.1.5 dir out action block",
		func() error { return netlink.XfrmPolicyAdd(blocks(netlink.XFRM_DIR_OUT, "0.0.0.0/0", "10.244.1.5/32")) },
		func() error { return netlink.XfrmPolicyDel(blocks(netlink.XFRM_DIR_OUT, "0.0.0.0/0", "10.244.1.5/32")) },
	},
	{
		"ip xfrm policy add src 198.51.100.8 dst 192.168.0.1 dir in action block",
		func() error {
			return netlink.XfrmPolicyAdd(blocks(netlink.XFRM_DIR_IN, "198.51.100.8/32", "192.168.0.1/32"))
		},
		func() error {
			return netlink.XfrmPolicyDel(blocks(netlink.XFRM_DIR_IN, "198.51.100.8/32", "192.168.0.1/32"))
		},
	},
}

func prefix(text string) *net.IPNet {
	_, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return n
}

func local(to string) *netlink.Route {
	return &netlink.Route{Dst: prefix(to), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, LinkIndex: 1, Scope: unix.RT_SCOPE_HOST}
}

func blackholed(to string) *netlink.Route {
	return &netlink.Route{Dst: prefix(to), Type: unix.RTN_BLACKHOLE, Priority: 5}
}

func marked() *netlink.Rule {
	r, mask := netlink.NewRule(), uint32(1)
	r.Family, r.Mark, r.Mask, r.Priority, r.Type = netlink.FAMILY_V4, 1, &mask, 100, blackhole
	return r
}

func blocks(direction netlink.Dir, from, to string) *netlink.XfrmPolicy {
	return &netlink.XfrmPolicy{Src: prefix(from), Dst: prefix(to), Dir: direction, Action: netlink.XFRM_POLICY_BLOCK}
}

// drawRouting draws what is beside the rules.
func (r *Ruleset) drawRouting() {
	for range r.below(3) {
		if r.below(3) == 0 {
			chosen := one(r, routes...)
			for _, other := range r.routing {
				if other.name == chosen.name {
					return
				}
			}
			r.routing = append(r.routing, chosen)
			r.Constructs = append(r.Constructs, chosen.name)
		}
	}
}

// Routing adds or removes routes, routing rules and policies in the network namespace of the calling thread.
func (r *Ruleset) Routing(add bool) (err error) {
	for _, route := range r.routing {
		if add {
			err = errors.Join(err, route.add())
		} else {
			err = errors.Join(err, route.remove())
		}
	}
	return err
}
