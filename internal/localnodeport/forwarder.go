package localnodeport

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/nftproxy/nftproxy/model"
)

// Options configures a Forwarder.
type Options struct {
	// Addresses are those to listen on, as the function Addresses returns them. Without any, nothing is
	// served.
	Addresses []netip.Addr
	// MaxConnections bounds the connections that are forwarded at a time, all node ports together; more wait until others
	// end. One node port on one address may have half of them, and at least one. 0 means 1,000.
	MaxConnections int
	// OnListeners, if set, is called with the number of listeners in a family when that changes.
	OnListeners func(family model.Family, count int)
	// OnListenFailure, if set, is called for each failure to listen.
	OnListenFailure func(family model.Family)
}

// Forwarder serves the TCP node ports of the model on loopback addresses.
type Forwarder struct {
	options Options
	// slots holds a value for each connection.
	slots chan struct{}

	// mu guards the fields below.
	mu sync.Mutex
	// ports holds the Service ports that have a TCP node port.
	ports map[model.PortID]*model.ServicePort
	// listeners holds the listeners by address, also those that cannot listen yet.
	listeners map[netip.AddrPort]*listener

	// countMu guards counts, the number of open listeners in each family, and keeps calls of OnListeners in order. It is
	// apart from mu because listeners open at any time.
	countMu sync.Mutex
	counts  map[model.Family]int
}

// defaultMaxConnections take 6,000 file descriptors. The clients are programs on the node, such as a container runtime.
const defaultMaxConnections = 1000

// New returns a Forwarder without listeners. Apply opens them.
func New(options Options) *Forwarder {
	return &Forwarder{
		options:   options,
		slots:     make(chan struct{}, cmp.Or(options.MaxConnections, defaultMaxConnections)),
		ports:     map[model.PortID]*model.ServicePort{},
		listeners: map[netip.AddrPort]*listener{},
		counts:    map[model.Family]int{},
	}
}

// Apply reconciles the listeners with changes that were synced. When it returns, node ports without endpoints refuse
// connections. If another program has a port, Apply logs that, and the Forwarder tries again until it is free or no
// longer wanted. Established connections stay until either side ends them. Listeners end with ctx, which should be the
// same for all calls.
func (f *Forwarder) Apply(ctx context.Context, changes *model.Changes) {
	if len(f.options.Addresses) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	touched := changes.Full
	if changes.Full {
		clear(f.ports)
	}
	for id, port := range changes.Ports {
		switch {
		case id.Protocol != model.TCP:
		case port != nil && port.NodePort != 0:
			f.ports[id], touched = port, true
		case f.ports[id] != nil:
			delete(f.ports, id)
			touched = true
		}
	}
	if touched {
		f.reconcile(ctx)
	}
}

// reconcile listens for each node port that has endpoints, and only then, so that clients of a
// Service without any are refused at once. Of two Service ports with one node port the first by name gets it, as in the
// rules. (The API server gives a node port to one Service only.)
func (f *Forwarder) reconcile(ctx context.Context) {
	owners := map[netip.AddrPort]*model.ServicePort{}
	for _, port := range f.ports {
		for _, addr := range f.options.Addresses {
			at := netip.AddrPortFrom(addr, port.NodePort)
			if model.FamilyOf(addr) == port.ID.Family && (owners[at] == nil || port.ID.Compare(owners[at].ID) < 0) {
				owners[at] = port
			}
		}
	}
	for at, l := range f.listeners {
		if port := owners[at]; port == nil || len(endpoints(port)) == 0 {
			l.close()
			delete(f.listeners, at)
		}
	}
	for at, port := range owners {
		if l := f.listeners[at]; l != nil {
			l.update(port)
		} else if len(endpoints(port)) > 0 {
			f.listeners[at] = f.listen(ctx, at, port)
		}
	}
}

// endpoints returns the endpoints for programs on the node. Under policy Local those are the endpoints on the node, as
// in KEP-6032. (Over the node's own address such a program reaches all.)
func endpoints(port *model.ServicePort) []model.Endpoint {
	if port.ExternalPolicy == model.PolicyLocal {
		return port.Local
	}
	return port.Cluster
}

func (f *Forwarder) count(family model.Family, by int) {
	f.countMu.Lock()
	defer f.countMu.Unlock()
	f.counts[family] += by
	if f.options.OnListeners != nil {
		f.options.OnListeners(family, f.counts[family])
	}
}

// loopback holds each family's prefix of loopback addresses, and the usual one among them.
var loopback = map[model.Family]struct {
	prefix netip.Prefix
	usual  netip.Addr
}{
	model.IPv4: {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParseAddr("127.0.0.1")},
	model.IPv6: {netip.MustParsePrefix("::1/128"), netip.IPv6Loopback()},
}

// Addresses returns the addresses to listen on for a list of nodePortAddresses. For each CIDR of loopback
// addresses only, that is 127.0.0.1 or ::1 if the CIDR contains it, else its first address. A CIDR that
// contains other addresses too, such as 0.0.0.0/0, does not count.
func Addresses(nodePortAddresses []netip.Prefix) []netip.Addr {
	var addresses []netip.Addr
	for _, p := range nodePortAddresses {
		known := loopback[model.FamilyOf(p.Addr())]
		if p.Bits() < known.prefix.Bits() || !known.prefix.Contains(p.Addr()) {
			continue
		}
		addr := p.Masked().Addr()
		if p.Contains(known.usual) {
			addr = known.usual
		}
		if !slices.Contains(addresses, addr) {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}
