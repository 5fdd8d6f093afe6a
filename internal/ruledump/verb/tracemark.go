package verb

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// match makes the tables that mark the packets.
func (t *tracing) match(to []string, from string) error {
	var targets []target
	for _, text := range to {
		more, err := targetsOf(t.rules, text)
		if err != nil {
			return fmt.Errorf("--to: %w", err)
		}
		targets = append(targets, more...)
	}
	source, err := parseClients(from)
	if err != nil {
		return err
	}
	for _, family := range nft.Families {
		if source.IsValid() && source.Addr().Is4() != (family == nft.FamilyIP) {
			continue
		}
		set := &nft.Set{Name: "to", Key: nft.Concat{family.Daddr(), nft.MetaL4proto, nft.ThDport}}
		var rules []nft.Rule
		marks := func(statements ...nft.Statement) {
			if source.IsValid() {
				statements = append(statements, nft.Match{Field: family.Saddr(), Value: source})
			}
			rules = append(rules, nft.NewRule(append(statements, nft.Limit{Rate: uint32(t.atMost), Burst: uint32(t.atMost)}, nft.SetNftrace)...))
		}
		for _, p := range targets {
			addr, port := p.Destination.Addr(), p.Destination.Port()
			if addr.Is4() != (family == nft.FamilyIP) {
				continue
			}
			if port == 0 {
				marks(nft.Match{Field: family.Daddr(), Value: netip.PrefixFrom(addr, addr.BitLen())}, nft.Match{Field: nft.MetaL4proto, Value: p.Protocol})
				continue
			}
			key, err := set.Key.Pack(addr, p.Protocol, port)
			if err != nil {
				return err
			}
			set.Put(nft.Element{Key: key})
		}
		if set.Len() > 0 {
			marks(nft.InSet{Key: set.Key, Set: set.Name})
		}
		if len(rules) == 0 {
			continue
		}
		table := &nft.Table{Family: family, Name: t.table, Owner: true, Sets: []*nft.Set{set}}
		for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookOutput} {
			table.Chains = append(table.Chains, &nft.Chain{Name: string(hook), Type: nft.TypeFilter, Hook: hook, Priority: -400, Rules: rules})
		}
		// These mark nothing: the kernel reports their policies.
		for _, c := range wayPoints {
			table.Chains = append(table.Chains, &c)
		}
		t.marks = append(t.marks, table)
	}
	if len(t.marks) == 0 {
		return fmt.Errorf("--from %s and --to %s are of different IP families", from, strings.Join(to, " and "))
	}
	return nil
}

// Chains that tell how far a packet has come: to the end of prerouting, to the beginning of forward or input, and to the
// end of its way.
const (
	chainPrerouted = "prerouted"
	chainForward   = "forward"
	chainInput     = "input"
	chainSent      = "sent"
	chainReceived  = "received"
)

var wayPoints = []nft.Chain{
	{Name: chainPrerouted, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: math.MaxInt32},
	{Name: chainForward, Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -400},
	{Name: chainInput, Type: nft.TypeFilter, Hook: nft.HookInput, Priority: -400},
	{Name: chainSent, Type: nft.TypeFilter, Hook: nft.HookPostrouting, Priority: math.MaxInt32},
	{Name: chainReceived, Type: nft.TypeFilter, Hook: nft.HookInput, Priority: math.MaxInt32},
}

// parseClients reads the value of --from: an address or a prefix; empty for all clients.
func parseClients(from string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(from); err == nil {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	clients, err := netip.ParsePrefix(from)
	if err != nil && from != "" {
		return clients, fmt.Errorf("--from: %q is neither an IP address nor a prefix", from)
	}
	return clients.Masked(), nil
}
