package localnodeport

import (
	"cmp"
	"context"
	"net/netip"
	"sync"

	"github.com/nftproxy/nftproxy/model"
)

// Options configures a Forwarder.
type Options struct {
	// Addresses are those to listen on, as the function Addresses returns them. Without any, nothing is
	// served.
	Addresses []netip.Addr
	// MaxConnections is how many connections are forwarded at a time, all node ports together; more wait until others end.
	// One node port on one address may have half of them, and at least one. 0 means 1,000.
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
	mu    sync.Mutex
	ports map[model.PortID]*model.ServicePort
	// claims holds the Service ports that have a node port.
	claims map[frontend]map[model.PortID]*model.ServicePort
	// listeners holds the listeners by address, also those that cannot listen yet.
	listeners map[netip.AddrPort]*listener

	// countMu guards counts, the number of open listeners in each family, and keeps calls of OnListeners
	// in order. It is apart from mu because listeners open at any time.
	countMu sync.Mutex
	counts  map[model.Family]int
}

// frontend is a TCP node port in one family.
type frontend struct {
	family model.Family
	port   uint16
}

// defaultMaxConnections take 6,000 file descriptors. The clients are programs on the node, such as a container runtime.
const defaultMaxConnections = 1000

// New returns a Forwarder without listeners. Apply opens them.
func New(options Options) *Forwarder {
	return &Forwarder{
		options:   options,
		slots:     make(chan struct{}, cmp.Or(options.MaxConnections, defaultMaxConnections)),
		ports:     map[model.PortID]*model.ServicePort{},
		claims:    map[frontend]map[model.PortID]*model.ServicePort{},
		listeners: map[netip.AddrPort]*listener{},
		counts:    map[model.Family]int{},
	}
}

// Apply reconciles the listeners with changes that were synced. When it returns, node ports without
// endpoints refuse connections. If another program has a port, Apply logs that, and the Forwarder tries
// again until it is free or no longer wanted. Established connections stay, also when their endpoint, their
// Service or ctx ends: they end when either side ends them. Listeners end with ctx, which should be the
// same for all calls.
func (f *Forwarder) Apply(ctx context.Context, changes *model.Changes) {
	if len(f.options.Addresses) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	touched := map[frontend]bool{}
	if changes.Full {
		for id := range f.ports {
			if changes.Ports[id] == nil {
				f.set(id, nil, touched)
			}
		}
	}
	for id, port := range changes.Ports {
		f.set(id, port, touched)
	}
	for fe := range touched {
		f.reconcile(ctx, fe)
	}
}

// set records the port with that ID, nil if it is gone, and adds the frontends that it had and has to touched.
func (f *Forwarder) set(id model.PortID, port *model.ServicePort, touched map[frontend]bool) {
	if id.Protocol != model.TCP {
		return
	}
	if old := f.ports[id]; old != nil {
		fe := frontend{id.Family, old.NodePort}
		delete(f.claims[fe], id)
		if len(f.claims[fe]) == 0 {
			delete(f.claims, fe)
		}
		delete(f.ports, id)
		touched[fe] = true
	}
	if port == nil || port.NodePort == 0 {
		return
	}
	fe := frontend{id.Family, port.NodePort}
	if f.claims[fe] == nil {
		f.claims[fe] = map[model.PortID]*model.ServicePort{}
	}
	f.claims[fe][id] = port
	f.ports[id] = port
	touched[fe] = true
}

// reconcile listens for a frontend if it has endpoints, and only then, so that clients of a
// Service without any are refused at once.
func (f *Forwarder) reconcile(ctx context.Context, fe frontend) {
	port := f.owner(fe)
	for _, addr := range f.options.Addresses {
		if model.FamilyOf(addr) != fe.family {
			continue
		}
		at := netip.AddrPortFrom(addr, fe.port)
		l := f.listeners[at]
		switch {
		case port == nil || len(endpoints(port)) == 0:
			if l != nil {
				l.close()
				delete(f.listeners, at)
			}
		case l != nil:
			l.update(port)
		default:
			f.listeners[at] = f.listen(ctx, at, port)
		}
	}
}

// owner returns the port that gets a frontend: the first by name, as in the rules. The API
// server gives a node port to one Service only.
func (f *Forwarder) owner(fe frontend) *model.ServicePort {
	var owner *model.ServicePort
	for _, port := range f.claims[fe] {
		if owner == nil || port.ID.Compare(owner.ID) < 0 {
			owner = port
		}
	}
	return owner
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

func (f *Forwarder) fail(family model.Family) {
	if f.options.OnListenFailure != nil {
		f.options.OnListenFailure(family)
	}
}
