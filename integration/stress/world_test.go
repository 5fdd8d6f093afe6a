package stress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// world is a cluster with its Kubernetes objects, one Service of which has clients.
type world struct {
	*cluster
	random   *rand.Rand
	tracker  *tracker.Tracker
	node     *corev1.Node
	cidrs    map[string]*networkingv1.ServiceCIDR
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice

	// mu guards what follows.
	mu sync.Mutex
	// syncs is how many there were.
	syncs int
	// until has, for each address that ever was an endpoint of the Service with clients, up to
	// which Sync it was one.
	until map[netip.Addr]int
}

// watched is the Service with clients.
const watched = "watched"

func newWorld(t *testing.T, random *rand.Rand) *world {
	t.Helper()
	return &world{
		cluster:  newCluster(t),
		random:   random,
		tracker:  newTracker(),
		cidrs:    map[string]*networkingv1.ServiceCIDR{},
		services: map[string]*corev1.Service{},
		slices:   map[string]*discoveryv1.EndpointSlice{},
		until:    map[netip.Addr]int{},
	}
}

func newTracker() *tracker.Tracker { return tracker.New(tracker.Options{NodeName: lab.NodeName}) }

func (w *world) setNode(n *corev1.Node) {
	w.node = n
	w.tracker.SetNode(n)
}

func (w *world) setServiceCIDR(c *networkingv1.ServiceCIDR) {
	w.cidrs[c.Name] = c
	w.tracker.SetServiceCIDR(c)
}

func (w *world) deleteServiceCIDR(name string) {
	delete(w.cidrs, name)
	w.tracker.DeleteServiceCIDR(name)
}

func (w *world) setService(s *corev1.Service) {
	w.services[s.Name] = s
	w.tracker.SetService(s)
}

func (w *world) setSlice(s *discoveryv1.EndpointSlice) {
	w.slices[s.Name] = s
	w.tracker.SetEndpointSlice(s)
}

// deleteService deletes a Service and its slices.
func (w *world) deleteService(name string) {
	delete(w.services, name)
	w.tracker.DeleteService(namespace, name)
	for _, family := range model.Families {
		slice := fmt.Sprint(name, "-", family)
		delete(w.slices, slice)
		w.tracker.DeleteEndpointSlice(namespace, slice)
	}
}

// restartProxy has a new proxy learn everything anew.
func (w *world) restartProxy(t *testing.T) {
	t.Helper()
	w.restart(t)
	w.tracker = newTracker()
	w.tracker.SetNode(w.node)
	for _, c := range w.cidrs {
		w.tracker.SetServiceCIDR(c)
	}
	for _, s := range w.services {
		w.tracker.SetService(s)
	}
	for _, s := range w.slices {
		w.tracker.SetEndpointSlice(s)
	}
	w.tracker.Synced()
}

// syncChanges has the proxy carry out what changed since the last time.
func (w *world) syncChanges(t *testing.T) {
	t.Helper()
	changes := w.tracker.Changes()
	if changes == nil {
		return
	}
	w.expectEndpoints(changes)
	w.sync(t, changes)
	w.forgetEndpoints(changes)
}

// expectEndpoints notes the endpoints that may get connections as soon as a Sync begins.
func (w *world) expectEndpoints(changes *model.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, port := range watchedPorts(changes) {
		for _, e := range port.Cluster {
			w.until[e.AddrPort.Addr()] = math.MaxInt
		}
	}
}

// forgetEndpoints notes the endpoints that must not get connections any more after a Sync.
func (w *world) forgetEndpoints(changes *model.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.syncs++
	for _, port := range watchedPorts(changes) {
		for addr, until := range w.until {
			gone := !slices.ContainsFunc(port.Cluster, func(e model.Endpoint) bool { return e.AddrPort.Addr() == addr })
			if model.FamilyOf(addr) == port.ID.Family && gone {
				w.until[addr] = min(until, w.syncs-1)
			}
		}
	}
}

func watchedPorts(changes *model.Changes) (ports []*model.ServicePort) {
	for id, port := range changes.Ports {
		if id.Service == watched && port != nil {
			ports = append(ports, port)
		}
	}
	return ports
}

// now returns how many Syncs there were.
func (w *world) now() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.syncs
}

// check returns an error unless a connection that began after that many Syncs may have
// reached the address.
func (w *world) check(reached netip.Addr, began int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	until, ever := w.until[reached]
	if !ever || until < began {
		return fmt.Errorf("a connection that began after Sync %d reached %s, which was an endpoint up to Sync %d", began, reached, until)
	}
	return nil
}
