package explain

import (
	"context"

	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/model"
)

// MaxConnections is how many open connections are shown. There may be a million.
const MaxConnections = 10

// AddConnections searches the connection tracking table for connections of the packet's sender to the packet's
// destination. If the packet has a source port, only that connection counts.
func (e *Explanation) AddConnections(ctx context.Context, conn *conntrack.Conn) error {
	p := e.packet
	return conn.Each(ctx, model.FamilyOf(p.Destination.Addr()), p.Protocol, func(f conntrack.Flow) {
		if f.Dialed != p.Destination || f.Source.Addr() != p.Source.Addr() || p.Source.Port() != 0 && p.Source.Port() != f.Source.Port() {
			return
		}
		if e.ConnectionsTotal++; len(e.Connections) < MaxConnections {
			e.Connections = append(e.Connections, Connection{f.Source, f.Dialed, f.Server})
		}
	})
}
