package verb

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
)

// marker has tables in the kernel whose rules mark packets ("meta nftrace set 1"). The kernel reports each rule that a
// marked packet meets, in all tables.
type marker struct {
	// table is the name of the tables.
	table  string
	tables []*nft.Table
	// onlyNew marks packets of connections that nobody has answered.
	onlyNew bool
	// owner is the connection that owns the tables: the kernel deletes them when it closes. It is used for nothing else. A
	// Conn whose reading is disturbed by a commit of another program opens a new socket, and the tables would be lost with
	// the old one.
	owner *nft.Conn
}

// mark makes the kernel have these tables in place of those before. It reports whether that took a commit.
func (m *marker) mark(ctx context.Context, conn *nft.Conn, tables []*nft.Table) (committed bool, err error) {
	first := m.owner == nil
	if first {
		if m.owner, err = conn.Another(); err != nil {
			return false, err
		}
	}
	have, want := ruledump.Snapshot{Tables: m.tables}, ruledump.Snapshot{Tables: tables}
	m.tables = tables
	var tx nft.Transaction
	for _, family := range nft.Families {
		tx.Append(nft.Diff(have.Table(family), want.Table(family)))
	}
	if len(tx.Steps) == 0 {
		return false, nil
	}
	if _, err = m.owner.Commit(ctx, tx); err != nil && first && ctx.Err() == nil {
		err = fmt.Errorf("a table that goes with its owner needs Linux 5.12: %w", err)
	}
	return err == nil, err
}

func (m *marker) close() {
	if m.owner != nil {
		_ = m.owner.Close() // the kernel deletes the tables
	}
}

// tablesFor returns tables that mark packets to the values of --to from the value of --from, and report how far each
// packet comes. Each rule marks at most so many packets a second.
func (m *marker) tablesFor(rules *ruledump.Snapshot, to []string, from string, atMost uint32) (tables []*nft.Table, err error) {
	var targets []target
	begin, priority := []nft.Statement(nil), int32(-400)
	if m.onlyNew { // which connection tracking finds out first
		begin, priority = append(begin, nft.Match{Field: nft.CTState, Value: nft.CTStateNew | nft.CTStateUntracked}), -199
	}
	for _, text := range to {
		more, err := targetsOf(rules, text)
		if err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
		targets = append(targets, more...)
	}
	source, err := parseClients(from)
	if err != nil {
		return nil, err
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
			rules = append(rules, nft.NewRule(append(append(statements, begin...), nft.Limit{Rate: atMost, Burst: atMost}, nft.SetNftrace)...))
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
				return nil, err
			}
			set.Put(nft.Element{Key: key})
		}
		if set.Len() > 0 {
			marks(nft.InSet{Key: set.Key, Set: set.Name})
		}
		if len(to) == 0 {
			marks()
		}
		if len(rules) == 0 {
			continue
		}
		table := &nft.Table{Family: family, Name: m.table, Owner: true, Sets: []*nft.Set{set}}
		for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookOutput} {
			table.Chains = append(table.Chains, &nft.Chain{Name: string(hook), Type: nft.TypeFilter, Hook: hook, Priority: priority, Rules: rules})
		}
		// These mark nothing: the kernel reports their policies.
		for _, c := range wayPoints {
			table.Chains = append(table.Chains, &c)
		}
		tables = append(tables, table)
	}
	if len(tables) == 0 {
		err = fmt.Errorf("--from %s and --to %s are of different IP families", from, strings.Join(to, " and "))
	}
	return tables, err
}

// Chains without rules, whose policies the kernel reports: they show that a packet has come to the end of prerouting, to
// the beginning of forward or input, and to the end of postrouting or input.
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
