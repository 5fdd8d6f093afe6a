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
	sets         sets
	// frontends holds the external addresses of Services that ask for direct return, by their keys in the table's maps.
	frontends map[nft.Data]*served
	// touched says that a frontend, mute or inside changed since Settle.
	touched bool
	// prefix is the longest prefix of all addresses with direct return; not valid if there are none.
	prefix netip.Prefix
	// mute says that this node forwards nothing, and inside has the devices by which packets come from inside the node.
	mute   bool
	inside []string
	// kernel returns, until the first Settle, the elements of the sets of an earlier process; nil if there are no such sets.
	kernel func(*nft.Set) []nft.Element
}

// served is the state of a frontend.
type served struct {
	// owner is the Service port that owns the frontend; nil for none.
	owner *model.ServicePort
	// slots are the slots in the draft; nil for none.
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

// LittleEndian says that this machine is little-endian. The kernel's jhash follows the byte order, so a big-endian node would
// compute other slots than the rest of its cluster, and takes no part.
var LittleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// New returns a planner for a draft. Unless it is enabled, and the machine LittleEndian, no Service port has direct return. With
// counts, sets count packets.
func New(draft *nft.Draft, enabled, counts bool) *Planner {
	p := &Planner{
		MaxAddresses: maxAddresses, draft: draft, family: draft.Family(), enabled: enabled && LittleEndian,
		grants:    grants{requests: map[model.PortID]*request{}},
		sets:      newSets(draft.Family(), counts),
		frontends: map[nft.Data]*served{},
	}
	if p.enabled {
		p.sets.put(draft)
	}
	return p
}

// Ask notes the state of a Service port, nil if it is gone. Call it for each change, even if the port owns no address.
func (p *Planner) Ask(id model.PortID, port *model.ServicePort) {
	if p.enabled {
		p.grants.ask(id, port)
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
	for _, e := range slices.Concat(p.kernel(p.sets.addresses), p.kernel(p.sets.leaving)) {
		p.frontends[e.Key], p.touched = &served{inKernel: true}, true
	}
	if p.touched && !p.enabled {
		p.sets.put(p.draft)
	}
}

// Serve notes which Service port owns the external address with a key; nil for none.
func (p *Planner) Serve(key []byte, owner *model.ServicePort) {
	s := p.frontends[nft.Data(key)]
	switch {
	case s == nil && (owner == nil || !owner.DirectReturn):
		return
	case s == nil:
		s = &served{}
		p.frontends[nft.Data(key)] = s
	}
	s.owner, p.touched = owner, true
}

// Limit makes this node forward nothing, or nothing that enters by the devices inside. Packets that it does not forward are
// served as under policy Cluster.
func (p *Planner) Limit(mute bool, inside []string) {
	p.mute, p.inside, p.touched = mute, inside, true
}

// ForwardsTo returns the addresses of endpoints on other nodes, sorted, to which this node forwards packets unless it is
// limited, also of frontends that leave.
func (p *Planner) ForwardsTo() (to []netip.Addr) {
	for _, s := range p.frontends {
		if s.slots != nil {
			for _, i := range s.slots.elsewhere() {
				to = append(to, s.slots.endpoints[i].Addr())
			}
		}
	}
	slices.SortFunc(to, netip.Addr.Compare)
	return slices.Compact(to)
}

// Without returns the Service ports that ask for direct return and have none, because of the limits of addresses and
// endpoints: news are those that it has not returned yet, all is the number of all.
func (p *Planner) Without() (news []model.PortID, all int) { return p.grants.without() }

// Settle brings the sets of the draft in line with the calls since the last Settle. It reports whether Services or Chains
// may return other rules than before.
func (p *Planner) Settle() (changed bool) {
	touched := p.grants.decide(p.MaxAddresses) || p.touched
	for _, s := range p.frontends {
		touched = touched || s.hasLeft()
	}
	if !touched {
		return false
	}
	for key, s := range p.frontends {
		p.settle(key, s)
	}
	before := p.prefix
	p.kernel, p.touched, p.prefix = nil, false, p.sets.prefix(p.family)
	return before.IsValid() || p.prefix.IsValid()
}

func (p *Planner) settle(key nft.Data, s *served) {
	var in *nft.Set
	var want *slots
	comment, until := "", time.Time{}
	if s.owner != nil {
		comment = nft.TruncateComment(s.owner.ID.ServicePortName())
		in, want = p.sets.addresses, p.grants.slotsOf(s.owner)
	}
	if want == nil {
		in, want, until = p.leave(key, s)
	}
	p.sets.mark(p.draft, in, nft.Element{Key: key, Comment: comment})
	p.sets.replace(p.draft, key, s.slots, want)
	s.slots, s.until, s.inKernel = want, until, false
	if want == nil && (s.owner == nil || !s.owner.DirectReturn) {
		delete(p.frontends, key)
	}
}

// hasLeft reports whether the time in which a frontend leaves is over.
func (s *served) hasLeft() bool { return !s.until.IsZero() && !now().Before(s.until) }

// leave returns the set of frontends that leave, the slots to which packets of open connections go on when a frontend has no
// direct return any more, and until when; zero values if there are none. Only packets of TCP go on, because a datagram does
// not say whether it opens a connection.
func (p *Planner) leave(key nft.Data, s *served) (in *nft.Set, left *slots, until time.Time) {
	switch {
	case s.owner == nil, s.owner.ID.Protocol != model.TCP, s.hasLeft():
		return
	case !s.until.IsZero():
		return p.sets.leaving, s.slots, s.until
	}
	had := s.slots
	if s.inKernel {
		had = p.sets.read(key, p.kernel)
	}
	if had == nil || p.sets.leaving.Len() >= p.MaxAddresses { // somebody makes many addresses come and go
		return
	}
	slots := *had
	slots.to[here] = [slotCount]uint16{} // other nodes do not know them
	return p.sets.leaving, &slots, now().Add(LeaveTime)
}
