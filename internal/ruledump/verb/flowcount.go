package verb

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/model"
)

// flowCount counts the flows to one endpoint that conntrack has. ipvsadm's ActiveConn is Active, and its InActConn is the
// sum of the others.
type flowCount struct {
	// Active: flows that were answered and have not ended
	Active int `json:"active"`
	// Unanswered: flows of which no packet came back, such as TCP in SYN_SENT or UDP of one direction
	Unanswered int `json:"unanswered"`
	// Finished: flows that have ended, which the kernel still remembers
	Finished int `json:"finished"`
}

func (n *flowCount) add(e *conntrack.Entry) {
	switch {
	case e.Finished():
		n.Finished++
	case e.Answered:
		n.Active++
	default:
		n.Unanswered++
	}
}

func (n flowCount) plus(o flowCount) flowCount {
	return flowCount{n.Active + o.Active, n.Unanswered + o.Unanswered, n.Finished + o.Finished}
}

func (n flowCount) all() int { return n.Active + n.Unanswered + n.Finished }

// flowCounts has the flows to each endpoint of each frontend, also to endpoints that no longer serve.
type flowCounts map[dialedKey]map[netip.AddrPort]*flowCount

// of returns the flows to an endpoint of a frontend.
func (c flowCounts) of(f *compiler.Frontend, server netip.AddrPort) (n flowCount) {
	if found := c[keyOf(f)][server]; found != nil {
		n = *found
	}
	return n
}

// endpointKey identifies an endpoint for a protocol.
type endpointKey struct {
	protocol model.Protocol
	at       netip.AddrPort
}

// byEndpoint adds up the flows to each endpoint over all frontends of a protocol.
func (c flowCounts) byEndpoint() map[endpointKey]flowCount {
	out := map[endpointKey]flowCount{}
	for key, servers := range c {
		for server, n := range servers {
			at := endpointKey{key.protocol, server}
			out[at] = out[at].plus(*n)
		}
	}
	return out
}

// countFlows counts the flows to the Services that the filter selects, by endpoint (flowIndex.countFlows).
func countFlows(ctx context.Context, from *source, rules *ruledump.Snapshot, filter Filter) (flowCounts, error) {
	filter.unserved = false
	if filter.prefix.IsValid() {
		filter = Filter{Namespace: filter.Namespace} // an endpoint's address selects frontends by their endpoints
	}
	x := &flowIndex{from: from, filter: filter}
	if err := x.build(rules); err != nil {
		return nil, err
	}
	return x.countFlows(ctx)
}

// maxCounted bounds the flows that countFlows reads, which takes some seconds for a million.
const maxCounted = 4_000_000

// errManyFlows is the error of a table that is read in part.
var errManyFlows = errors.New("conntrack has more flows than ruledump counts: the numbers of connections are too small")

// countFlows counts the flows to the Services of the index by endpoint. It lists each IP family and protocol once, and
// keeps numbers alone. It counts at most maxSums servers that are no endpoints of the rules, and maxCounted flows; with
// errManyFlows the counts are those of the flows read until then. A report lists only flows that fail.
func (x *flowIndex) countFlows(ctx context.Context) (flowCounts, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	counts, strangers, read := flowCounts{}, 0, 0
	err := x.entries(ctx, func(e conntrack.Entry) {
		if read++; read > maxCounted {
			stop(errManyFlows)
			return
		}
		f := x.frontend(&e.Flow)
		if f == nil {
			return
		}
		servers := counts[keyOf(f)]
		if servers == nil {
			servers = map[netip.AddrPort]*flowCount{}
			counts[keyOf(f)] = servers
		}
		if servers[e.Server] == nil {
			if !x.serves(f)[e.Server] {
				if strangers++; strangers > maxSums {
					return
				}
			}
			servers[e.Server] = &flowCount{}
		}
		servers[e.Server].add(&e)
	})
	if errors.Is(context.Cause(ctx), errManyFlows) {
		err = errManyFlows
	}
	return counts, err
}
