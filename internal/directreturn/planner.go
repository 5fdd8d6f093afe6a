package directreturn

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// Planner plans direct return in the table of one IP family. It owns the sets and chains of the table whose names begin
// with "direct-", and the base chain that leads to them. A Planner is not safe for concurrent use.
type Planner struct {
	// MaxAddresses is the number of addresses that may have direct return. Tests lower it.
	MaxAddresses int
	draft        *nft.Draft
	family       nft.Family
	enabled      bool
	grants       grants
	// frontends holds the external addresses of Services that ask for direct return.
	frontends map[Frontend]*served
	// touched holds the frontends that Settle looks at.
	touched map[Frontend]*served
	slots   map[model.PortID]*slots
	sets    sets
	// prefix is the longest prefix of all addresses with direct return; not valid if there are none.
	prefix netip.Prefix
	// leaves says that frontends leave direct return.
	leaves bool
	// mute says that this node forwards nothing, and inside has the devices by which packets come from inside the node.
	mute   bool
	inside []string
	// moved says that Chains returns other rules than at the last Settle because of mute or inside.
	moved bool
	// remote has the addresses of the endpoints on other nodes.
	remote []netip.Addr
	// kernel returns the elements of the sets of an earlier process until the first Settle; nil for no such sets.
	kernel func(*nft.Set) []nft.Element
}

// Frontend is an address that clients outside the cluster dial.
type Frontend struct {
	Addr     netip.AddrPort
	Protocol model.Protocol
}

// served is the state of a frontend.
type served struct {
	// owner is the Service port that owns the frontend; nil for none.
	owner *model.ServicePort
	// slots are those in the draft; nil for none.
	slots *slots
	// until is the end of the time in which packets of open connections go on to their slots, although the frontend has no
	// direct return any more; zero for a frontend that has direct return, or never had.
	until time.Time
	// inKernel says that an earlier process served the frontend.
	inKernel bool
}

// LeaveTime is the time for which packets of open TCP connections go on to their slots when their frontend has no direct
// return any more. A node that starts begins it anew.
const LeaveTime = 5 * time.Minute

// now is another clock in tests.
var now = time.Now

// LittleEndian says that this machine is. The kernel's jhash follows the byte order, so a big-endian node would compute other
// slots than the rest of its cluster, and takes no part.
var LittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// New returns a planner for a draft. Unless it is enabled, and the machine LittleEndian, no Service port has direct return. With
// counts, sets count packets.
func New(draft *nft.Draft, enabled, counts bool) *Planner {
	enabled = enabled && LittleEndian
	p := &Planner{
		MaxAddresses: maxAddresses,
		draft:        draft, family: draft.Family(), enabled: enabled, grants: newGrants(),
		frontends: map[Frontend]*served{}, touched: map[Frontend]*served{}, slots: map[model.PortID]*slots{},
		sets: newSets(draft.Family(), counts),
	}
	if enabled {
		p.sets.put(draft)
	}
	return p
}

// Ask takes the state of a Service port, nil if it is gone. Call it for each change, whoever owns the port's addresses.
func (p *Planner) Ask(id model.PortID, port *model.ServicePort) {
	if p.enabled {
		p.grants.ask(id, port)
	}
	if port == nil {
		delete(p.slots, id)
	}
}

// Restore makes the planner go on from the sets of an earlier process, whose elements it may ask for until the first Settle:
// frontends that had direct return leave it in an orderly way. Call it before the first Serve.
func (p *Planner) Restore(elements func(*nft.Set) []nft.Element) {
	read := map[*nft.Set][]nft.Element{}
	p.kernel = func(s *nft.Set) []nft.Element {
		if read[s] == nil {
			read[s] = elements(s)
		}
		return read[s]
	}
	for _, set := range []*nft.Set{p.sets.addresses, p.sets.leaving} {
		for _, e := range p.kernel(set) {
			if fe, ok := parseFrontend(e.Key); ok && p.frontends[fe] == nil {
				s := &served{inKernel: true}
				p.frontends[fe], p.touched[fe] = s, s
			}
		}
	}
	if len(p.touched) > 0 && !p.enabled {
		p.sets.put(p.draft)
	}
}

// Serve takes the Service port that owns an external address; nil for none.
func (p *Planner) Serve(fe Frontend, owner *model.ServicePort) {
	s := p.frontends[fe]
	switch {
	case s == nil && (owner == nil || !owner.DirectReturn):
		return
	case s == nil:
		s = &served{}
		p.frontends[fe] = s
	}
	s.owner = owner
	p.touched[fe] = s
}

// Limit says that this node forwards nothing, or nothing that enters by the devices inside. What it does not forward goes
// the usual way.
func (p *Planner) Limit(mute bool, inside []string) {
	p.moved = p.moved || mute != p.mute || !slices.Equal(inside, p.inside)
	p.mute, p.inside = mute, inside
}

// ForwardsTo returns the addresses of endpoints on other nodes, sorted, to which this node forwards packets unless it is
// limited, also of frontends that leave.
func (p *Planner) ForwardsTo() []netip.Addr { return p.remote }

// Settle brings the sets of the draft in line with the calls since the last Settle. It reports whether Services or Chains
// return other rules than before.
func (p *Planner) Settle() (changed bool) {
	decided := p.grants.decide(p.MaxAddresses) // rare
	if decided || p.leaves {
		for fe, s := range p.frontends {
			if decided || !s.until.IsZero() && !now().Before(s.until) {
				p.touched[fe] = s
			}
		}
	}
	changed, p.moved = p.moved && p.prefix.IsValid(), false
	if len(p.touched) == 0 {
		return changed
	}
	for fe, s := range p.touched {
		p.settle(fe, s)
	}
	clear(p.touched)
	p.kernel = nil
	prefix, leaves := p.sets.prefix(p.family), p.sets.leaving.Len() > 0
	p.remote = p.remoteEndpoints()
	changed = changed || prefix != p.prefix || leaves != p.leaves
	p.prefix, p.leaves = prefix, leaves
	return changed
}

func (p *Planner) settle(fe Frontend, s *served) {
	var want *slots
	if s.owner != nil {
		want = p.slotsOf(s.owner)
		p.grants.note(s.owner, want != nil)
	}
	in := p.sets.addresses
	if want != nil {
		s.until = time.Time{}
	} else if want = p.leave(fe, s); want != nil {
		in = p.sets.leaving
	}
	s.inKernel = false
	if want != nil {
		p.sets.mark(p.draft, fe, in, nft.TruncateComment(s.owner.ID.ServicePortName()))
	} else {
		p.sets.mark(p.draft, fe, nil, "")
	}
	p.sets.replace(p.draft, fe, s.slots, want)
	if s.slots = want; want == nil && (s.owner == nil || !s.owner.DirectReturn) {
		delete(p.frontends, fe)
	}
}

// leave returns the slots to which packets of open connections go on when a frontend has no direct return any more; nil if
// there are none. A datagram does not say whether it opens a connection, so only those of TCP go on.
func (p *Planner) leave(fe Frontend, s *served) *slots {
	had := s.slots
	if s.inKernel && s.owner != nil && fe.Protocol == model.TCP {
		had = p.sets.read(fe, p.kernel)
	}
	if had == nil || s.owner == nil || fe.Protocol != model.TCP {
		return nil
	}
	if s.until.IsZero() {
		if p.sets.leaving.Len() >= p.MaxAddresses {
			return nil // somebody makes many addresses come and go
		}
		s.until = now().Add(LeaveTime)
	}
	if !now().Before(s.until) {
		s.until = time.Time{}
		return nil
	}
	return had.withoutOwn()
}

func (p *Planner) remoteEndpoints() (remote []netip.Addr) {
	for _, s := range p.frontends {
		if s.slots != nil {
			remote = append(remote, s.slots.remote()...)
		}
	}
	slices.SortFunc(remote, netip.Addr.Compare)
	return slices.Compact(remote)
}

// slotsOf returns the slots of a Service port that asks for direct return; nil if it has none.
func (p *Planner) slotsOf(port *model.ServicePort) *slots {
	if !p.grants.granted[port.ID] || len(port.Cluster) == 0 || len(port.Cluster) > maxEndpoints {
		delete(p.slots, port.ID)
		return nil
	}
	have := p.slots[port.ID]
	if have == nil || !have.isOf(port) {
		have = newSlots(port)
		p.slots[port.ID] = have
	}
	return have
}

// Without returns the Service ports that ask for direct return and have none, because of the limits of addresses and
// endpoints: those that it has not returned yet, and the number of all.
func (p *Planner) Without() (news []model.PortID, all int) {
	news = slices.DeleteFunc(p.grants.news, func(id model.PortID) bool { return !p.grants.without[id] })
	p.grants.news = nil
	return news, len(p.grants.without)
}
