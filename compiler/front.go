package compiler

import (
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/internal/directreturn"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// front plans direct return in the table of a family: it serves external addresses before the chains that the plans name.
// It owns its sets and chains in the draft.
type front interface {
	Ask(model.PortID, *model.ServicePort)
	Serve(key []byte, owner *model.ServicePort)
	Settle() (changed bool)
	Services() []nft.Rule
	Chains(local []nft.Statement, guard []nft.Rule) []*nft.Chain
	Restore(elements func(*nft.Set) []nft.Element)
	ForwardsTo() []netip.Addr
	Limit(mute bool, inside []string)
	Without() (news []model.PortID, all int)
}

func newFront(draft *nft.Draft, config *Config) front {
	return directreturn.New(draft, config.DirectReturn, config.CountRefused)
}

// frontCounters says what the counters of direct return's sets count.
var frontCounters = map[string]Counted{
	directreturn.Asked: CountedAsked, directreturn.Answered: CountedAnswered, directreturn.Unknown: CountedUnknownConnection,
}

// serveFront passes the owners of frontends to direct return; nil if the owner's rank cannot have it.
func (f *family) serveFront(touched []*frontendState) {
	var key []byte
	for _, s := range touched {
		if s.frontend.isNodePort() {
			continue
		}
		var owner *model.ServicePort
		if p := s.applied; p != nil && (p.rank == rankLoadBalancer || p.rank == rankExternalIP) {
			owner = p.port.ServicePort
		}
		key = s.frontend.appendKey(key[:0])
		f.front.Serve(key, owner)
	}
}

// Restore makes the compiler go on from the kernel's tables. The function returns the elements of a set there; none if there
// is no such set. Call Restore before the first Apply. Without it, addresses that have lost direct return lose their open
// connections at once.
func (c *Compiler) Restore(elements func(nft.Family, *nft.Set) []nft.Element) {
	for _, f := range c.served() {
		f.front.Restore(func(s *nft.Set) []nft.Element { return elements(f.program.family, s) })
	}
}

// ForwardsTo returns the addresses of endpoints on other nodes to which direct return forwards packets, sorted.
func (c *Compiler) ForwardsTo() (to []netip.Addr) {
	for _, f := range c.served() {
		to = append(to, f.front.ForwardsTo()...)
	}
	return to
}

// LimitForwarding applies that direct return forwards nothing (mute), or nothing that enters by one of
// the devices inside. Clients whose packets it does not forward are masqueraded. Packets that other nodes have forwarded
// are served as before.
func (c *Compiler) LimitForwarding(mute bool, inside []string) {
	for _, f := range c.served() {
		f.front.Limit(mute, inside)
	}
	c.Apply(&model.Changes{})
}

// WithoutDirectReturn returns the Service ports that ask for direct return and have none, because others of the family
// or of the namespace have as many addresses as may have it, or because they have too many endpoints. It returns each once,
// sorted, and the number of all.
func (c *Compiler) WithoutDirectReturn() (news []model.PortID, all int) {
	for _, f := range c.served() {
		ids, n := f.front.Without()
		news, all = append(news, ids...), all+n
	}
	slices.SortFunc(news, model.PortID.Compare)
	return news, all
}

// hasDirectReturn reports whether a table serves a frontend with direct return.
func hasDirectReturn(t *nft.Table, frontend nft.Data) bool {
	set := t.Set(directreturn.Addresses)
	if set == nil {
		return false
	}
	_, has := set.Element(frontend)
	return has
}

func frontRole(chain string) Role {
	switch {
	case chain == directreturn.ChainOwn:
		return RoleServeReturn
	case directreturn.Forwards(chain):
		return RoleDirectForward
	}
	return RoleOther
}
