package leftovers

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Removal is what Remove did.
type Removal struct {
	// Removed are the chains that are gone, as in Leftover.Example.
	Removed []string
	// Kept are chains of kube-proxy that stay, because a chain of somebody else leads to them.
	Kept []string
}

// Remove removes the chains that kube-proxy's other modes made with iptables-nft, and the rules of the
// tables' base chains that lead to them, in one transaction: packets see all of them or none. The rules of others, among
// them the kubelet's, and the tables themselves stay. Nothing is removed from iptables-legacy and IPVS.
func Remove() (Removal, error) {
	k, err := dial()
	if err != nil {
		return Removal{}, err
	}
	defer k.close()
	removal, err := retry(k.remove)
	if err != nil {
		return Removal{}, fmt.Errorf("remove what %s left: %w", NFT, err)
	}
	return removal, nil
}

func (k *kernel) remove() (Removal, error) {
	generation, err := k.generation()
	if err != nil {
		return Removal{}, err
	}
	var removal Removal
	var messages []netlink.Message
	for _, f := range families {
		chains, err := k.chains(f)
		if err != nil {
			return Removal{}, err
		}
		for _, table := range iptablesTables {
			inTable := slices.DeleteFunc(slices.Clone(chains), func(c chain) bool { return c.table != table })
			if !slices.ContainsFunc(inTable, func(c chain) bool { return isRemovable(c.name) }) {
				continue
			}
			rules, err := k.jumps(f, table)
			if err != nil {
				return Removal{}, err
			}
			p := newPlan(inTable, rules)
			messages = append(messages, p.messages(f, table)...)
			removal.Removed = append(removal.Removed, texts(p.chains)...)
			removal.Kept = append(removal.Kept, texts(p.kept)...)
		}
	}
	if len(messages) == 0 {
		return removal, nil
	}
	if err := k.commit(generation, messages); errors.Is(err, unix.EPERM) {
		return Removal{}, fmt.Errorf("%w; nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace", err)
	} else if err != nil {
		return Removal{}, err
	}
	return removal, nil
}

// plan is what to remove from one table.
type plan struct {
	// rules are those of base chains that lead to chains.
	rules  []rule
	chains []chain
	kept   []chain
}

// newPlan leaves a chain alone if a chain of somebody else leads to it, and all that it leads to itself. Base chains
// are somebody else's too, but rules that lead from there to kube-proxy are kube-proxy's own.
func newPlan(chains []chain, jumps []rule) plan {
	base, doomed := map[string]bool{}, map[string]bool{}
	for _, c := range chains {
		base[c.name] = c.base
		doomed[c.name] = isRemovable(c.name) && !c.base
	}
	for changed := true; changed; {
		changed = false
		keep := func(name string) {
			changed = changed || doomed[name]
			doomed[name] = false
		}
		for _, r := range jumps {
			if !doomed[r.chain] && !base[r.chain] {
				keep(r.to)
			}
		}
		if mark, there := doomed[markChain]; there && !mark {
			keep(postroutingChain) // it masquerades what the other marks
		}
	}
	var p plan
	for _, c := range chains {
		switch {
		case doomed[c.name]:
			p.chains = append(p.chains, c)
		case isRemovable(c.name):
			p.kept = append(p.kept, c)
		}
	}
	for _, r := range jumps {
		if base[r.chain] && doomed[r.to] {
			p.rules = append(p.rules, r)
		}
	}
	return p
}

// messages empties all chains before it deletes the first: the kernel refuses to delete a chain that a rule leads to.
func (p *plan) messages(f family, table string) (messages []netlink.Message) {
	add := func(typ uint16, fill func(*netlink.AttributeEncoder)) {
		messages = append(messages, message(typ, 0, f, attributes(fill)))
	}
	for _, r := range p.rules {
		add(unix.NFT_MSG_DELRULE, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, table)
			e.String(unix.NFTA_RULE_CHAIN, r.chain)
			e.Uint64(unix.NFTA_RULE_HANDLE, r.handle)
		})
	}
	for _, c := range p.chains {
		add(unix.NFT_MSG_DELRULE, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, table)
			e.String(unix.NFTA_RULE_CHAIN, c.name)
		})
	}
	for _, c := range p.chains {
		add(unix.NFT_MSG_DELCHAIN, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, table)
			e.String(unix.NFTA_CHAIN_NAME, c.name)
		})
	}
	return messages
}

func texts(chains []chain) []string {
	var out []string
	for _, c := range chains {
		out = append(out, c.String())
	}
	return out
}
