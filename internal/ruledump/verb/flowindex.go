package verb

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
)

// flowIndex finds the Service port of a flow by the kernel's rules.
type flowIndex struct {
	from   *source
	filter Filter
	rules  *ruledump.Snapshot
	// hops, if set, finds next hops, for a filter that is one.
	hops *nextHops
	// checked is the time at which refresh last looked for changed rules.
	checked time.Time

	frontends map[dialedKey]*compiler.Frontend
	// serviceCIDRs are the ranges in which an address without a Service is one of a Service that was deleted.
	serviceCIDRs []netip.Prefix
	// serving holds the endpoints of the frontends of which flows were found.
	serving map[*compiler.Frontend]map[netip.AddrPort]bool
}

// dialedKey identifies a frontend. The address is the zero value for a node port.
type dialedKey struct {
	family   nft.Family
	protocol model.Protocol
	at       netip.AddrPort
}

func keyOf(f *compiler.Frontend) dialedKey {
	return dialedKey{f.Family, f.Protocol, netip.AddrPortFrom(f.Addr, f.Port)}
}

var tableFamilies = map[model.Family]nft.Family{model.IPv4: nft.FamilyIP, model.IPv6: nft.FamilyIP6}

// indexes makes cmd run with the filter of its arguments, and an index of the Services that it selects, or of all.
func (s *source) indexes(cmd *cobra.Command, all bool, run func(*cobra.Command, *flowIndex, Filter) error) *cobra.Command {
	return s.reads(cmd, func(cmd *cobra.Command, rules *ruledump.Snapshot, filter Filter) error {
		x := &flowIndex{from: s}
		if !all {
			x.filter = filter
		}
		if err := x.build(rules); err != nil {
			return err
		}
		if len(x.frontends) == 0 && !x.filter.isAll() {
			return filter.notFound()
		}
		return run(cmd, x, filter)
	})
}

func (x *flowIndex) build(rules *ruledump.Snapshot) error {
	frontends, err := x.filter.dialed(rules)
	if err != nil {
		return err
	}
	x.rules, x.checked = rules, time.Now()
	x.frontends, x.serving = map[dialedKey]*compiler.Frontend{}, map[*compiler.Frontend]map[netip.AddrPort]bool{}
	for _, f := range frontends {
		x.frontends[keyOf(f)] = f
	}
	x.serviceCIDRs = nil
	if x.filter.isAll() || x.filter.prefix.IsValid() {
		for _, t := range rules.Tables {
			x.serviceCIDRs = append(x.serviceCIDRs, compiler.ServiceCIDRs(t)...)
		}
	}
	return nil
}

// ofDeleted reports whether the client dialed an address while a Service held it that none holds now.
func (x *flowIndex) ofDeleted(e *conntrack.Entry) bool {
	contains := func(cidr netip.Prefix) bool { return cidr.Contains(e.Dialed.Addr()) }
	return e.Translated() && slices.ContainsFunc(x.serviceCIDRs, contains)
}

// refreshEvery is the least time between two looks for changed rules.
const refreshEvery = time.Second

// refresh reads the rules again if they have changed.
func (x *flowIndex) refresh(ctx context.Context) error {
	if time.Since(x.checked) < refreshEvery {
		return nil
	}
	x.checked = time.Now()
	rules, err := rereadKernel(ctx, x.from.conn, x.rules)
	if err != nil || rules == x.rules {
		return err
	}
	return x.build(rules)
}

// manyQueries bounds the frontends that are asked for one by one. The kernel walks the whole table for each.
const manyQueries = 8

// queries returns what to ask the kernel for.
func (x *flowIndex) queries() (queries []conntrack.Query) {
	for family, table := range tableFamilies {
		if x.rules.Table(table) == nil {
			continue
		}
		for _, protocol := range protocols {
			all := len(x.serviceCIDRs) > 0
			var some []conntrack.Query
			for key := range x.frontends {
				if all {
					break
				}
				if key.family == table && key.protocol == protocol {
					some = append(some, conntrack.Query{Family: family, Protocol: uint8(protocol), Dialed: key.at})
					all = len(some) > manyQueries
				}
			}
			if all {
				some = []conntrack.Query{{Family: family, Protocol: uint8(protocol)}}
			}
			queries = append(queries, some...)
		}
	}
	return queries
}

// entries calls each for the flows of the kernel, or of the report that the rules come from, that may be to a Service.
func (x *flowIndex) entries(ctx context.Context, each func(conntrack.Entry)) error {
	if x.from.dump != "" {
		return reportedEntries(x.rules, each)
	}
	conn, err := conntrack.Dial(0)
	if err != nil {
		return err
	}
	for _, q := range x.queries() {
		if err := conn.Entries(ctx, q, each); err != nil {
			return err
		}
	}
	return nil
}

// reportedEntries calls each for the flows that a report lists.
func reportedEntries(s *ruledump.Snapshot, each func(conntrack.Entry)) error {
	list, err := fromFile[Connections](s, connectionsFile)
	switch {
	case err != nil:
		return err
	case list == nil:
		return errors.New("the dump has no connections; a file that \"ruledump report\" wrote has")
	}
	for _, f := range list.Flows {
		flow := conntrack.Flow{Source: f.Source, Dialed: f.Dialed, Server: f.Server, State: f.State}
		for _, protocol := range protocols {
			if protocol.String() == f.Protocol {
				flow.Protocol = uint8(protocol)
			}
		}
		each(conntrack.Entry{
			Flow: flow, Answered: f.Answered, Left: time.Duration(f.LeftSeconds) * time.Second, Begun: f.Begun, Packets: f.Packets, Bytes: f.Bytes,
		})
	}
	return nil
}

// noService stands for a Service port in flows to addresses of Services that were deleted.
var noService = &compiler.Frontend{ServicePort: "-"}

// find returns the flow to a Service; nil if the client dialed none of those in the index.
func (x *flowIndex) find(e *conntrack.Entry) *serviceFlow {
	f := x.frontend(&e.Flow)
	switch {
	case f == nil && x.ofDeleted(e):
		f = noService
	case f == nil:
		return nil
	}
	out := &serviceFlow{
		name:     f.ServicePort,
		Protocol: model.Protocol(e.Protocol).String(), Answered: e.Answered, LeftSeconds: int(e.Left.Seconds()), Begun: e.Begun, Packets: e.Packets, Bytes: e.Bytes,
		connection:  connection{e.Source, e.Dialed, e.Server, e.State, e.Finished(), !x.serves(f)[e.Server]},
		SourcePlace: x.rules.Places[e.Source.Addr()], ServerPlace: x.rules.Places[e.Server.Addr()],
	}
	if f != noService {
		out.Namespace, out.Service, out.Port = splitServicePort(f.ServicePort)
	}
	if x.hops != nil && x.filter.isNextHop() {
		out.Node = x.hops.to(e.Server.Addr())
	}
	if !x.filter.selectsFlow(out, f) {
		return nil
	}
	return out
}

// frontend returns the frontend that the client dialed. A node port answers on the node's own addresses alone.
func (x *flowIndex) frontend(f *conntrack.Flow) *compiler.Frontend {
	key := dialedKey{tableFamilies[model.FamilyOf(f.Dialed.Addr())], model.Protocol(f.Protocol), f.Dialed}
	if found := x.frontends[key]; found != nil {
		return found
	}
	key.at = netip.AddrPortFrom(netip.Addr{}, f.Dialed.Port())
	if found := x.frontends[key]; found != nil && slices.Contains(x.rules.Addresses, f.Dialed.Addr()) {
		return found
	}
	return nil
}

// serves returns the endpoints of a frontend.
func (x *flowIndex) serves(f *compiler.Frontend) map[netip.AddrPort]bool {
	if x.serving[f] == nil {
		x.serving[f] = serversOf(f)
	}
	return x.serving[f]
}
