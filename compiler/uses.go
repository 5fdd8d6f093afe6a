package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/nft"
)

// uses says which sets have elements. Rules that only look up an empty set are left out, so that packets do not pay for
// what no Service needs.
type uses struct{ hairpin, nodePorts, noEndpoints, noEndpointNodePorts, guarded bool }

// updateUses rewrites the chains with fixed names after a set became empty or got its first element.
func (f *family) updateUses() {
	s := &f.sets
	now := uses{
		hairpin: s.hairpin.Len() > 0, nodePorts: s.nodePorts.services.Len() > 0,
		noEndpoints: s.addresses.noEndpoints.Len() > 0, noEndpointNodePorts: s.nodePorts.noEndpoints.Len() > 0,
		guarded: s.guardedIPs.Len() > 0,
	}
	if now != f.uses {
		f.uses = now
		f.putFixedChains()
	}
}

// putNoEndpointChecks puts the chains that refuse packets to frontends without endpoints, if there are any.
func (f *family) putNoEndpointChecks() {
	addresses, nodePorts := f.sets.addresses.noEndpoints, f.sets.nodePorts.noEndpoints
	f.putChainIf(f.uses.noEndpoints, &nft.Chain{
		Name: chainNoEndpoints, Rules: []nft.Rule{nft.NewRule(nft.Vmap{Key: f.key(false), Map: addresses.Name})},
	})
	f.putChainIf(f.uses.noEndpointNodePorts, &nft.Chain{
		Name: chainNoEndpointNodePorts, Rules: f.onNodePortAddresses(true, nft.Vmap{Key: f.key(true), Map: nodePorts.Name}),
	})
}

// putChainIf puts a chain that is needed, and removes one that is not.
func (f *family) putChainIf(needed bool, c *nft.Chain) {
	if needed {
		f.draft.PutChain(c)
	} else {
		f.draft.RemoveChain(c.Name)
	}
}

// putElementIf puts an element that is needed, and removes one that is not.
func (f *family) putElementIf(needed bool, set *nft.Set, e nft.Element) {
	if needed {
		f.draft.Put(set, e)
	} else {
		f.draft.Remove(set, e.Key)
	}
}

// inUse returns those of the chains that have something to look up.
func (f *family) inUse(chains ...string) []string {
	return slices.DeleteFunc(chains, func(chain string) bool {
		return chain == chainNoEndpoints && !f.uses.noEndpoints || chain == chainNoEndpointNodePorts && !f.uses.noEndpointNodePorts
	})
}
