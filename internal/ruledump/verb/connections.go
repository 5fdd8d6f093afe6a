package verb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// MaxConnections is how many connections are explainShown. There may be a million.
const MaxConnections = 10

// Connection is an entry of conntrack.
type Connection struct {
	// Source is the client.
	Source netip.AddrPort `json:"source"`
	// Dialed is the address that the client dialed.
	Dialed netip.AddrPort `json:"dialed"`
	// Server is the address that answers: the endpoint, if the connection was translated.
	Server netip.AddrPort `json:"server"`
	// State is the kernel's state of a TCP or SCTP connection, such as "ESTABLISHED"; empty for other protocols.
	State string `json:"state,omitempty"`
	// Finished says that the connection has ended: TCP in TIME_WAIT or CLOSE, SCTP in CLOSED.
	Finished bool `json:"finished,omitempty"`
	// NoEndpoint says that the rules have no endpoint Server for this address: it is gone or not ready, or the connection
	// began before the address belonged to a Service.
	NoEndpoint bool `json:"noEndpoint,omitempty"`
}

// AddConnections searches the connection tracking table for connections of the packet's sender to the packet's
// destination. If the packet has a source port, only that connection counts.
func (e *Explanation) AddConnections(ctx context.Context, conn *conntrack.Conn) error {
	p := e.packet
	var finished []Connection
	err := conn.Each(ctx, model.FamilyOf(p.Destination.Addr()), p.Protocol, func(f conntrack.Flow) {
		if f.Dialed != p.Destination || f.Source.Addr() != p.Source.Addr() || p.Source.Port() != 0 && p.Source.Port() != f.Source.Port() {
			return
		}
		list := &e.Connections
		if f.Finished() {
			list = &finished
			e.ConnectionsFinished++
		}
		if e.ConnectionsTotal++; len(*list) < MaxConnections {
			*list = append(*list, Connection{f.Source, f.Dialed, f.Server, f.State, f.Finished(), e.hasNoEndpoint(f)})
		}
	})
	e.Connections = append(e.Connections, finished[:min(len(finished), MaxConnections-len(e.Connections))]...)
	return err
}

// hasNoEndpoint reports whether a flow that the rules, or earlier ones, translated leads to no endpoint of the packet's
// Service port.
func (e *Explanation) hasNoEndpoint(f conntrack.Flow) bool {
	return (e.ServicePort != "" || f.Translated()) && !e.endpoints[f.Server]
}

// keepEndpoints keeps the endpoints of the packet's Service port.
func (e *Explanation) keepEndpoints(frontends []*compiler.Frontend) {
	e.endpoints = map[netip.AddrPort]bool{}
	for _, f := range frontends {
		if f.ServicePort != e.ServicePort {
			continue
		}
		for _, list := range [][]netip.AddrPort{f.Endpoints, f.LocalEndpoints} {
			for _, endpoint := range list {
				e.endpoints[endpoint] = true
			}
		}
	}
}

func (e *Explanation) printConnections(b *strings.Builder) {
	if e.ConnectionsTotal == 0 {
		return
	}
	finished := ""
	if e.ConnectionsFinished > 0 {
		finished = fmt.Sprintf(", %d of them finished", e.ConnectionsFinished)
	}
	fmt.Fprintf(b, "\nconntrack has connections of the client to this address (%d%s); changed rules do not move them\n", e.ConnectionsTotal, finished)
	for _, c := range e.Connections {
		fmt.Fprintf(b, "  %s to %s: answered by %s", c.Source, c.Dialed, c.Server)
		if c.State != "" {
			fmt.Fprintf(b, ", %s", c.State)
		}
		if c.NoEndpoint {
			b.WriteString("; the rules have no such endpoint")
		}
		b.WriteByte('\n')
	}
	if more := e.ConnectionsTotal - len(e.Connections); more > 0 {
		fmt.Fprintf(b, "  … and %d more\n", more)
	}
}
