package nodeaddr

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Policy is an IPsec policy (xfrm).
type Policy struct {
	Direction           netlink.Dir
	Source, Destination netip.Prefix
	// Protocol and the ports are 0 for all.
	Protocol                    uint8
	SourcePort, DestinationPort uint16
	// Block drops the packets, and Transform is for packets that IPsec protects. Without both they pass.
	Block, Transform bool
	// Conditional says that the policy has conditions besides: a mark or an interface.
	Conditional bool

	priority uint32
}

// Policies lists the IPsec policies of the thread's network namespace: IPv4's before IPv6's, and within a family in the order
// in which the kernel tries them. A kernel without IPsec has none. The library's XfrmPolicyList is of no use here: it takes an
// IPv6 prefix whose last twelve bytes are zero, such as fd00:244::/32, for IPv4.
func Policies() (list []Policy, err error) {
	messages, err := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP).Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	for _, m := range messages {
		info := nl.DeserializeXfrmUserpolicyInfo(m)
		attributes, err := nl.ParseRouteAttr(m[info.Len():])
		if err != nil {
			return nil, err
		}
		has := func(kinds ...uint16) bool {
			return slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool { return slices.Contains(kinds, a.Attr.Type) })
		}
		selector := &info.Sel
		list = append(list, Policy{
			Direction: netlink.Dir(info.Dir), Source: selected(selector.Saddr, selector.PrefixlenS, selector.Family),
			Destination: selected(selector.Daddr, selector.PrefixlenD, selector.Family), Protocol: selector.Proto,
			SourcePort: nl.Swap16(selector.Sport), DestinationPort: nl.Swap16(selector.Dport),
			Block: netlink.PolicyAction(info.Action) == netlink.XFRM_POLICY_BLOCK, Transform: has(nl.XFRMA_TMPL),
			Conditional: selector.Ifindex != 0 || has(nl.XFRMA_MARK, nl.XFRMA_IF_ID), priority: info.Priority,
		})
	}
	slices.SortStableFunc(list, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Source.Addr().BitLen(), b.Source.Addr().BitLen()), cmp.Compare(a.priority, b.priority))
	})
	return list, err
}

// selected returns a prefix of a selector.
func selected(addr nl.XfrmAddress, bits uint8, family uint16) netip.Prefix {
	if family == unix.AF_INET {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(addr[:4])), int(bits))
	}
	return netip.PrefixFrom(netip.AddrFrom16(addr), int(bits))
}
