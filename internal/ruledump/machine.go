package ruledump

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
	s.Ordered = all
	s.addLegacy(record)
	s.Host.Lookup = func(t *nft.Table, set string, key nft.Data) (nft.Element, bool, error) {
		return conn.Lookup(ctx, t, set, key)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	byIndex, under := s.addLinks(links)
	for _, t := range all {
		if !slices.Contains(s.Tables, t) {
			s.nameUnfollowed(t, under)
		}
	}
	s.addRouting(byIndex)
	s.addUnfollowed(links)
	return nil
}

// AddHost reads the interfaces, routes and settings alone, which AddOthers reads too.
func (s *Snapshot) AddHost() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	byIndex, _ := s.addLinks(links)
	s.addRouting(byIndex)
	return nil
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
		err := legacy.Err
		var recording nft.Recording
		if err == nil && record {
			recording, err = legacy.Record()
		}
		if err != nil {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("table %s %s: %v", legacy.Family, legacy.Name, err))
			continue
		}
		s.Ordered = slices.Insert(s.Ordered, 0, legacy.Table())
		if record {
			s.otherRecordings = slices.Insert(s.otherRecordings, 0, recording)
		}
	}
}

// nameUnfollowed adds to NotLookedAt the chains of a table that the evaluator cannot follow. under has the devices that
// others send their packets through.
func (s *Snapshot) nameUnfollowed(t *nft.Table, under map[string]string) {
	name := tableName(t)
	bridges := slices.Compact(slices.Sorted(maps.Values(s.Host.Bridges)))
	for _, c := range t.Chains {
		devices := t.Kernel.Devices[c.Name]
		if t.Family == nft.FamilyBridge && c.Hook != "" {
			if !slices.Contains(bridgeHooks, c.Hook) {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("%s, chain %s: explain follows no %s of bridges", name, c.Name, c.Hook))
			}
			devices = bridges
		}
		for _, device := range devices {
			if above := under[device]; above != "" {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("%s, chain %s: for packets of %s, which pass %s too", name, c.Name, above, device))
			}
		}
	}
	if t.Kernel.LeftOut != "" {
		s.NotLookedAt = append(s.NotLookedAt, name+": "+t.Kernel.LeftOut)
	}
}

var bridgeHooks = []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting}

func tableName(t *nft.Table) string { return fmt.Sprintf("table %s %s", t.Family, t.Name) }

// addLinks adds the interfaces and the ports of bridges. It returns the interfaces by their indices, and the devices that
// others send their packets through, with one of those.
func (s *Snapshot) addLinks(links []netlink.Link) (byIndex map[int]netlink.Link, under map[string]string) {
	byIndex, under = map[int]netlink.Link{}, map[string]string{}
	s.Host.Interfaces, s.Host.Bridges = map[string]uint32{}, map[string]string{}
	for _, l := range links {
		byIndex[l.Attrs().Index], s.Host.Interfaces[l.Attrs().Name] = l, uint32(l.Attrs().Index)
	}
	for _, l := range links {
		switch master := byIndex[l.Attrs().MasterIndex]; {
		case master == nil:
		case master.Type() == "bridge":
			s.Host.Bridges[l.Attrs().Name] = master.Attrs().Name
		default:
			under[l.Attrs().Name] = master.Attrs().Name
		}
		if parent := byIndex[l.Attrs().ParentIndex]; parent != nil && slices.Contains([]string{"vlan", "vxlan", "macvlan", "ipvlan"}, l.Type()) {
			under[parent.Attrs().Name] = l.Attrs().Name
		}
	}
	if len(s.Host.Bridges) > 0 {
		s.Host.BridgePorts, s.Host.NoHairpin = bridgePorts(byIndex), portsWithoutHairpin(byIndex)
	}
	// What passes a bridge passes its ports.
	for port, bridge := range s.Host.Bridges {
		if above := under[bridge]; above != "" {
			under[port] = above
		}
	}
	for family, name := range map[nft.Family]string{nft.FamilyIP: "iptables", nft.FamilyIP6: "ip6tables"} {
		if value, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-" + name); err == nil && strings.TrimSpace(string(value)) == "1" {
			s.Host.BridgeFilters = append(s.Host.BridgeFilters, family)
		}
	}
	slices.Sort(s.Host.BridgeFilters)
	return byIndex, under
}

// bridgePorts finds the ports behind which addresses are: by the neighbours of a bridge, and the Ethernet addresses that it
// has learnt. What cannot be read leaves ports unknown.
func bridgePorts(links map[int]netlink.Link) map[netip.Addr]string {
	type learnt struct {
		bridge int
		mac    string
	}
	ports, addrs := map[learnt]string{}, map[netip.Addr]string{}
	entries, _ := netlink.NeighList(0, unix.AF_BRIDGE)
	for _, e := range entries {
		if port := links[e.LinkIndex]; port != nil {
			at := learnt{e.MasterIndex, e.HardwareAddr.String()}
			if known, is := ports[at]; is && known != port.Attrs().Name {
				ports[at] = "" // VLANs of a bridge learn apart
				continue
			}
			ports[at] = port.Attrs().Name
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		neighbours, _ := netlink.NeighList(0, family)
		for _, n := range neighbours {
			port := ports[learnt{n.LinkIndex, n.HardwareAddr.String()}]
			if addr, ok := netip.AddrFromSlice(n.IP); ok && port != "" && len(addrs) < maxRoutes {
				addrs[addr.Unmap()] = port
			}
		}
	}
	return addrs
}

// portsWithoutHairpin lists the ports of bridges in whose place nobody else sends packets back: a promiscuous bridge does.
func portsWithoutHairpin(links map[int]netlink.Link) (names []string) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, _ := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	for _, m := range messages {
		port, err := netlink.LinkDeserialize(&unix.NlMsghdr{Type: unix.RTM_NEWLINK}, m)
		if err != nil || port.Attrs().Protinfo == nil || port.Attrs().Protinfo.Hairpin {
			continue
		}
		if bridge := links[port.Attrs().MasterIndex]; bridge != nil && bridge.Attrs().Promisc == 0 {
			names = append(names, port.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

// others is the part of a dump about what else is on the way of packets.
type others[Table any] struct {
	// Tables: the tables of all programs, in the order in which they were made
	Tables []Table `json:"tables"`
	evaluator.Host
	// BridgeFilters: the families whose hooks br_netfilter calls at ports of bridges
	BridgeFilters []string `json:"bridgeFilters,omitempty" jsonschema:"enum=ip,enum=ip6"`
	// NotLookedAt: rules that may be on the way of packets and are not in the dump
	NotLookedAt []string `json:"notLookedAt,omitempty"`
}

type otherText struct {
	Family  string      `json:"family"`
	Name    string      `json:"name"`
	Own     bool        `json:"own,omitempty"` // the table is the proxy's, and stands in tables
	Comment string      `json:"comment,omitempty"`
	LeftOut []string    `json:"leftOut,omitempty"` // parts of the table that are not in the dump, and why
	Chains  []chainText `json:"chains,omitempty"`
	// Netlink: the netlink messages that describe the table; absent if it is the proxy's
	Netlink nft.Recording `json:"netlink,omitempty"`
}

// otherBytes is the part of an otherText that is read.
type otherBytes struct {
	Family, Name string
	Own          bool
	Netlink      nft.Recording
}

// othersText returns the others as a dump has them; nil if their messages were not recorded.
func (s *Snapshot) othersText() *others[otherText] {
	if s.otherRecordings == nil && len(s.NotLookedAt) == 0 {
		return nil
	}
	out := &others[otherText]{Tables: []otherText{}, Host: s.Host, NotLookedAt: s.NotLookedAt}
	if out.Routes == nil {
		out.Routes = []evaluator.Route{}
	}
	for _, family := range s.Host.BridgeFilters {
		out.BridgeFilters = append(out.BridgeFilters, family.String())
	}
	for i, t := range s.Ordered {
		text := otherText{Family: t.Family.String(), Name: t.Name, Own: slices.Contains(s.Tables, t)}
		if !text.Own {
			if s.otherRecordings[i] == nil {
				continue // NotLookedAt names it
			}
			text.Comment, text.Netlink = t.Comment, s.otherRecordings[i]
			for _, set := range t.Sets {
				if set.Partial() {
					text.LeftOut = append(text.LeftOut, fmt.Sprintf("the elements of set %s: there are more than %d", set.Name, nft.MaxRecordedElements))
				}
			}
			for _, c := range t.Chains {
				text.Chains = append(text.Chains, fromChain(c))
			}
		}
		out.Tables = append(out.Tables, text)
	}
	return out
}

// addRecorded adds the others of a dump.
func (s *Snapshot) addRecorded(o *others[otherBytes]) error {
	if s.NotLookedAt, s.Host = o.NotLookedAt, o.Host; len(o.Routes) > 0 && o.Devices == nil {
		s.NotLookedAt = append(s.NotLookedAt, "ip_forward and rp_filter: not in this dump")
	}
	for _, family := range nft.Families {
		if slices.Contains(o.BridgeFilters, family.String()) {
			s.Host.BridgeFilters = append(s.Host.BridgeFilters, family)
		}
	}
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
	return nil
}
