package ruledump

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
)

// maxRoutes is how many routes are read.
const maxRoutes = 10_000

// AddOthers reads the tables of other programs, and the routes and interfaces of this network namespace, for a walk
// through all of them; with record also their messages, for Write. NotLookedAt names everything that cannot be looked
// at, and why.
func (s *Snapshot) AddOthers(ctx context.Context, conn *nft.Conn, record bool) {
	if err := s.readOthers(ctx, conn, record); err != nil {
		s.Ordered, s.NotLookedAt = nil, append(s.NotLookedAt, "tables of other programs: "+err.Error())
	}
}

func (s *Snapshot) readOthers(ctx context.Context, conn *nft.Conn, record bool) error {
	read := conn.ReadOthers
	if record {
		read = func(ctx context.Context, known ...*nft.Table) (all []*nft.Table, err error) {
			all, s.otherRecordings, err = conn.RecordOthers(ctx, known...)
			return all, err
		}
	}
	all, err := read(ctx, s.Tables...)
	if err != nil {
		return err
	}
	for _, t := range all {
		s.nameUnfollowed(t)
	}
	s.Ordered = all
	s.addLegacy(record)
	s.Host.Lookup = func(t *nft.Table, set string, key nft.Data) (nft.Element, bool, error) {
		return conn.Lookup(ctx, t, set, key)
	}
	return s.addRoutes()
}

// How large a table of iptables-legacy may be in the kernel. A dump has less room: some 40,000 rules.
const maxLegacyBytes, maxLegacyInDump = 256 << 20, 32 << 20

// addLegacy adds the tables of iptables-legacy, as if they had been made first.
func (s *Snapshot) addLegacy(record bool) {
	maxBytes := maxLegacyBytes
	if record {
		maxBytes = maxLegacyInDump
	}
	tables, err := leftovers.LegacyTables(maxBytes)
	if err != nil {
		s.NotLookedAt = append(s.NotLookedAt, "iptables-legacy: "+err.Error())
	}
	for _, legacy := range slices.Backward(tables) {
		var t *nft.Table
		err := legacy.Err
		if err == nil {
			t, err = legacy.Rules.Other()
		}
		if err != nil {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("table %s %s: %v", legacy.Family, legacy.Name, err))
			continue
		}
		s.Ordered = slices.Insert(s.Ordered, 0, t)
		if record {
			s.otherRecordings = slices.Insert(s.otherRecordings, 0, legacy.Rules)
		}
	}
}

// nameUnfollowed adds to NotLookedAt the chains of a table that the evaluator cannot follow.
func (s *Snapshot) nameUnfollowed(t *nft.Table) {
	name := tableName(t)
	if family := t.Family.String(); family == "bridge" || family == "netdev" {
		for _, c := range t.Chains {
			if c.Hook != "" {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("%s, chain %s (hook %s, priority %d): explain follows no family %s", name, c.Name, c.Hook, c.Priority, family))
			}
		}
	}
	for _, c := range t.Chains {
		if t.Family == nft.FamilyInet && c.Hook == "ingress" {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("%s, chain %s: explain follows no hook ingress", name, c.Name))
		}
	}
	if t.Kernel != nil && t.Kernel.LeftOut != "" {
		s.NotLookedAt = append(s.NotLookedAt, name+": "+t.Kernel.LeftOut)
	}
}

func tableName(t *nft.Table) string { return fmt.Sprintf("table %s %s", t.Family, t.Name) }

// addRoutes reads the interfaces, and the routes of the main table.
func (s *Snapshot) addRoutes() error {
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	names := map[int]string{}
	s.Host.Interfaces = map[string]uint32{}
	for _, l := range links {
		names[l.Index], s.Host.Interfaces[l.Name] = l.Name, uint32(l.Index)
	}
	for family, anywhere := range map[int]netip.Prefix{netlink.FAMILY_V4: netip.PrefixFrom(netip.IPv4Unspecified(), 0), netlink.FAMILY_V6: netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			continue // an interface that is not known makes an answer depend on more rules
		}
		for _, r := range routes {
			to := anywhere
			if r.Dst != nil {
				if to, err = netip.ParsePrefix(r.Dst.String()); err != nil {
					continue
				}
			}
			if len(s.Host.Routes) == maxRoutes {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("routes: more than the first %d", maxRoutes))
				return nil
			}
			s.Host.Routes = append(s.Host.Routes, evaluator.Route{Destination: to, Interface: names[r.LinkIndex]})
		}
	}
	return nil
}

// others is the part of a dump about what else is on the way of packets.
type others[Table any] struct {
	Tables      []Table           `json:"tables"`
	Routes      []route           `json:"routes"`
	Interfaces  map[string]uint32 `json:"interfaces,omitempty"`
	NotLookedAt []string          `json:"notLookedAt,omitempty"`
}

type otherText struct {
	Family  string        `json:"family"`
	Name    string        `json:"name"`
	Own     bool          `json:"own,omitempty"`
	Comment string        `json:"comment,omitempty"`
	LeftOut []string      `json:"leftOut,omitempty"`
	Chains  []chainText   `json:"chains,omitempty"`
	Netlink nft.Recording `json:"netlink,omitempty"`
}

// otherBytes is the part of an otherText that is read.
type otherBytes struct {
	Family, Name string
	Own          bool
	Netlink      nft.Recording
}

type route struct {
	To        netip.Prefix `json:"to"`
	Interface string       `json:"interface"`
}

// othersText returns the others as a dump has them; nil if their messages were not recorded.
func (s *Snapshot) othersText() *others[otherText] {
	if s.otherRecordings == nil && len(s.NotLookedAt) == 0 {
		return nil
	}
	out := &others[otherText]{Tables: []otherText{}, Routes: []route{}, Interfaces: s.Host.Interfaces, NotLookedAt: s.NotLookedAt}
	for i, t := range s.Ordered {
		text := otherText{Family: t.Family.String(), Name: t.Name, Own: slices.Contains(s.Tables, t)}
		if !text.Own {
			if s.otherRecordings[i] == nil {
				continue // NotLookedAt names it
			}
			text.Comment, text.Netlink = t.Comment, s.otherRecordings[i]
			for _, set := range t.Sets {
				if t.Family.Routes() && !set.Recorded() {
					text.LeftOut = append(text.LeftOut, fmt.Sprintf("the elements of set %s: there are more than %d", set.Name, nft.MaxRecordedElements))
				}
			}
			for _, c := range t.Chains {
				text.Chains = append(text.Chains, fromChain(c))
			}
		}
		out.Tables = append(out.Tables, text)
	}
	for _, r := range s.Host.Routes {
		out.Routes = append(out.Routes, route{r.Destination, r.Interface})
	}
	return out
}

// addRecorded adds the others of a dump.
func (s *Snapshot) addRecorded(o *others[otherBytes]) error {
	s.NotLookedAt, s.Host.Interfaces = o.NotLookedAt, o.Interfaces
	s.Ordered, s.otherRecordings = []*nft.Table{}, []nft.Recording{}
	for i := range o.Tables {
		text := &o.Tables[i]
		if text.Own {
			if at := slices.IndexFunc(s.Tables, func(t *nft.Table) bool { return t.Family.String() == text.Family && t.Name == text.Name }); at >= 0 {
				s.Ordered, s.otherRecordings = append(s.Ordered, s.Tables[at]), append(s.otherRecordings, nil)
			}
			continue
		}
		t, err := text.Netlink.Other()
		if err != nil {
			return fmt.Errorf("table %s %s of another program: %w", text.Family, text.Name, err)
		}
		s.Ordered, s.otherRecordings = append(s.Ordered, t), append(s.otherRecordings, text.Netlink)
	}
	for _, r := range o.Routes {
		s.Host.Routes = append(s.Host.Routes, evaluator.Route{Destination: r.To, Interface: r.Interface})
	}
	s.Host.Lookup = func(t *nft.Table, set string, key nft.Data) (nft.Element, bool, error) { return t.Find(set, key) }
	return nil
}
