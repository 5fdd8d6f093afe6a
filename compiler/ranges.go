package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// Most packets of new connections go to no Service. They skip the chains that look Services up, if their destination is in
// none of the ranges that hold what the chains look for: the ServiceCIDRs and, for services, the addresses on which node
// ports answer. A chain is called for every destination while a frontend that it looks for is in no ServiceCIDR, such as a
// load balancer IP, and where no ServiceCIDRs are known.

// outside counts the frontends with addresses in no ServiceCIDR.
type outside struct {
	// served have an endpoint, which the chain services looks up. checked are ClusterIPs, and frontends that are refused or
	// dropped, which the chain forward-check looks up.
	served, checked int
}

// moveOutside counts a frontend by another plan.
func (f *family) moveOutside(fe frontend, have, want *plan) {
	if have == want || fe.isNodePort() || f.program.inServiceCIDR(fe.addr) {
		return
	}
	f.outside.add(have, -1)
	f.outside.add(want, 1)
}

func (o *outside) add(p *plan, n int) {
	if p != nil && p.kind != kindNone {
		o.served += n
	}
	if p != nil && (p.rank == rankClusterIP || p.unserved != unservedNothing) {
		o.checked += n
	}
}

// countOutside counts all frontends anew, after a change of the ServiceCIDRs.
func (f *family) countOutside() {
	f.outside = outside{}
	for fe, s := range f.claims.frontends {
		f.moveOutside(fe, nil, s.applied)
	}
}

func (p *program) inServiceCIDR(addr netip.Addr) bool {
	return slices.ContainsFunc(p.serviceCIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(addr) })
}

// toServices calls the chain services.
func (p *program) toServices() []nft.Rule {
	direct := len(p.front.Services()) > 0 // for external addresses, some of them without endpoints
	ranges := slices.Concat(p.serviceRanges(), p.nodePortRanges(p.has(serviceElement, true)))
	return p.inRanges(ranges, p.uses.servedOutside || direct, nft.Jump(chainServices))
}

// toForwardCheck calls the chain forward-check for the first packet of each connection. Translated packets have the
// addresses of endpoints, and need affinity-check.
func (p *program) toForwardCheck() (rules []nft.Rule) {
	if p.hasAffinity() && !p.uses.checkedOutside {
		rules = []nft.Rule{nft.NewRule(isNew, wasTranslated, nft.Goto(chainAffinityCheck))}
	}
	return append(rules, p.inRanges(p.serviceRanges(), p.uses.checkedOutside, isNew, nft.Jump(chainForwardCheck))...)
}

func (p *program) serviceRanges() []netip.Prefix {
	return withoutNested(prefixesOf(p.family, p.serviceCIDRs))
}

// maxRanges bounds the comparisons that each packet pays. With more ranges they would cost more than the lookups do.
const maxRanges = 8

// inRanges returns rules that run statements for packets to some prefixes, or to everywhere. The address comes first: most
// packets then cost one comparison. An IPv6 address comes after other conditions: to compare it takes the kernel up to 50 ns,
// and the state of a connection 13.
func (p *program) inRanges(ranges []netip.Prefix, everywhere bool, statements ...nft.Statement) (rules []nft.Rule) {
	if everywhere || len(ranges) > maxRanges || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() == 0 }) {
		return []nft.Rule{nft.NewRule(statements...)}
	}
	at := 0
	if p.family == nft.FamilyIP6 {
		at = len(statements) - 1
	}
	for _, r := range ranges {
		isTo := nft.Statement(nft.Match{Field: p.family.Daddr(), Value: r})
		rules = append(rules, nft.NewRule(slices.Insert(slices.Clone(statements), at, isTo)...))
	}
	return rules
}
