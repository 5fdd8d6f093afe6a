package verb

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
)

// nextHops finds the gateways by which the node reaches endpoints. The rules do not say on which node an endpoint is;
// with most networks of pods the gateway does.
type nextHops struct {
	asker *ruledump.Asker
	// known holds what was asked already.
	known map[netip.Addr]string
	// err is the first failure.
	err error
}

// noRoute stands for the next hop of an address that the node cannot reach.
const noRoute = "no route"

// to returns "via" and the gateway; "dev" and a device, if the node reaches the address without one, as it does its own
// pods; "this node"; noRoute for an address without a route; or "" if the device is gone.
func (n *nextHops) to(addr netip.Addr) string {
	hop, known := n.known[addr]
	if !known {
		var err error
		if hop, err = n.ask(addr); err != nil && n.err == nil {
			n.err = fmt.Errorf("find the route to %s: %w", addr, err)
		}
		n.known[addr] = hop
	}
	return hop
}

func (n *nextHops) ask(addr netip.Addr) (hop string, err error) {
	if n.asker == nil {
		if n.asker, err = ruledump.NewAsker(); err != nil {
			return "", err
		}
	}
	answer, err := n.asker.RouteTo(addr)
	switch r := answer.Route; {
	case err != nil:
		return "", err
	case answer.Failure != "":
		return noRoute, nil // none, or one of type unreachable, prohibit or blackhole
	case r.Type == evaluator.RouteLocal:
		return "this node", nil
	case r.Gateway.IsValid():
		return "via " + r.Gateway.String(), nil
	case r.Interface != "":
		return "dev " + r.Interface, nil
	}
	return "", nil
}
