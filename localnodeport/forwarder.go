package localnodeport

import (
	"context"
	"net/netip"
	"sync"

	"github.com/nftproxy/nftproxy/model"
)

// Options configures a Forwarder.
type Options struct {
	// Addresses is where to listen, as Addresses returns it. Without any, nothing is served.
	Addresses []netip.Addr
	// OnListeners, if set, is told how many listeners there are in a family when that changes.
	OnListeners func(family model.Family, count int)
	// OnListenFailure, if set, is told of each failure to listen.
	OnListenFailure func(family model.Family)
}

// Forwarder serves the TCP node ports of the model on loopback addresses.
type Forwarder struct {
	options Options

	// mu guards what follows.
	mu    sync.Mutex
	ports map[model.PortID]*model.ServicePort
	// claims holds the ports that have a node port.
	claims map[frontend]map[model.PortID]*model.ServicePort
	// listeners holds those that exist or are tried for, by where they listen.
	listeners map[netip.AddrPort]*listener

	// countMu guards counts, how many listen in each family, and keeps OnListeners in order.
	// It is apart from mu because listeners come to be at any time.
	countMu sync.Mutex
	counts  map[model.Family]int
}

// frontend is a TCP node port in one family.
type frontend struct {
	family model.Family
	port   uint16
}

// New returns a Forwarder that Apply sets to work.
func New(options Options) *Forwarder {
	return &Forwarder{
		options:   options,
		ports:     map[model.PortID]*model.ServicePort{},
		claims:    map[frontend]map[model.PortID]*model.ServicePort{},
		listeners: map[netip.AddrPort]*listener{},
		counts:    map[model.Family]int{},
	}
}

// Apply reconciles the listeners with changes that were synced. When it returns, node ports without
// endpoints refuse connections. A port that another program has is logged, and tried again until it
// is free or not wanted any more. Established connections stay, whatever becomes of their endpoint,
// their Service or ctx: they end when either side ends them. Listeners end with ctx, which should
// be the same for all calls.
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
		f.settle(ctx, fe)
	}
}

// set makes port, which may be nil, what the port with that ID is.
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

// settle listens for a frontend if it has endpoints, and only then, so that clients of a
// Service without any are refused at once.
func (f *Forwarder) settle(ctx context.Context, fe frontend) {
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

// endpoints returns who may serve a program on the node. Under policy Local these are the ones on the node, as
// KEP-6032 has it; over the node's own address such a program reaches all.
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
