package verb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
)

// maxConnections bounds the connections that are shown. There may be a million.
const maxConnections = 10

// connection is an entry of conntrack.
type connection struct {
	Source netip.AddrPort `json:"source"` // the client
	Dialed netip.AddrPort `json:"dialed"` // the address that the client dialed
	// Server: the address that answers: the endpoint, if the connection was translated
	Server netip.AddrPort `json:"server"`
	// State: the kernel's state of a TCP or SCTP connection, such as ESTABLISHED
	State string `json:"state,omitempty"`
	// Finished says that the connection has ended: TCP in TIME_WAIT or CLOSE, SCTP in CLOSED.
	Finished bool `json:"finished,omitempty"`
	// NoEndpoint says that the rules have no endpoint Server for this address: it is gone or not ready, or the connection
	// began before the address belonged to a Service.
	NoEndpoint bool `json:"noEndpoint,omitempty"`
}

// addConnections searches the connection tracking table, or the flows of the report that the rules come from.
func (e *Explanation) addConnections(ctx context.Context, from *source, s *ruledump.Snapshot) error {
	switch {
	case from.conn != nil:
		conn, err := conntrack.Dial(0)
		if err != nil {
			return err
		}
		return e.takeConnections(func(each func(conntrack.Flow)) error {
			return conn.Each(ctx, model.FamilyOf(e.packet.Destination.Addr()), e.packet.Protocol, each)
		})
	case s.Files[connectionsFile] != nil:
		return e.takeConnections(func(each func(conntrack.Flow)) error {
			return reportedEntries(s, func(entry conntrack.Entry) { each(entry.Flow) })
		})
	}
	return nil
}

// takeConnections takes those connections of the packet's sender that are to the packet's destination. If the packet
// has a source port, only that connection counts.
func (e *Explanation) takeConnections(eachFlow func(each func(conntrack.Flow)) error) error {
	p := e.packet
	var finished []connection
	err := eachFlow(func(f conntrack.Flow) {
		if f.Protocol != p.Protocol || f.Dialed != p.Destination || f.Source.Addr() != p.Source.Addr() ||
			p.Source.Port() != 0 && p.Source.Port() != f.Source.Port() {
			return
		}
		list := &e.Connections
		if f.Finished() {
			list = &finished
			e.ConnectionsFinished++
		}
		if e.ConnectionsTotal++; len(*list) < maxConnections {
			*list = append(*list, connection{f.Source, f.Dialed, f.Server, f.State, f.Finished(), !e.serves(f)})
		}
	})
	e.Connections = append(e.Connections, finished[:min(len(finished), maxConnections-len(e.Connections))]...)
	return err
}

// serves reports whether the packet's Service port has the server of a flow as an endpoint. If there is none, each server
// serves that was not translated.
func (e *Explanation) serves(flow conntrack.Flow) bool {
	if e.ServicePort == "" {
		return !flow.Translated()
	}
	return slices.ContainsFunc(e.frontends(), func(f *compiler.Frontend) bool {
		return f.ServicePort == e.ServicePort && serversOf(f)[flow.Server]
	})
}

// serversOf returns the endpoints to which the rules send any client of a frontend. A server that is not among them serves
// nobody: it is gone or not ready, or the connection began before the address belonged to the Service.
func serversOf(f *compiler.Frontend) map[netip.AddrPort]bool {
	endpoints := make(map[netip.AddrPort]bool, len(f.Endpoints))
	for _, e := range slices.Concat(f.Endpoints, f.LocalEndpoints) {
		endpoints[e] = true
	}
	return endpoints
}

func (e *Explanation) printConnections(p *Page) {
	if e.ConnectionsTotal == 0 {
		return
	}
	finished := ""
	if e.ConnectionsFinished > 0 {
		finished = fmt.Sprintf(", %d of them finished", e.ConnectionsFinished)
	}
	p.printf("\nconntrack has connections of the client to this address (%d%s); changed rules do not move them\n",
		e.ConnectionsTotal, finished)
	for _, c := range e.Connections {
		p.printf("  %s to %s: answered by %s", c.Source, c.Dialed, c.Server)
		if c.State != "" {
			p.printf(", %s", c.State)
		}
		if c.NoEndpoint {
			p.WriteString("; the rules have no such endpoint")
		}
		p.WriteByte('\n')
	}
	p.more(e.ConnectionsTotal-len(e.Connections), "  … and %d more\n")
}
