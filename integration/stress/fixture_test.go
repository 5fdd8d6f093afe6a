package stress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// fixture is a cluster with its Kubernetes objects, one Service of which has clients.
type fixture struct {
	*cluster
	random   *rand.Rand
	tracker  *tracker.Tracker
	node     *corev1.Node
	cidrs    map[string]*networkingv1.ServiceCIDR
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice

	// mu guards what follows.
	mu sync.Mutex
	// syncs counts the Syncs.
	syncs int
	// until has, for each address that ever was an endpoint of the Service with clients, up to
	// which Sync it was one.
	until map[netip.Addr]int
}

// watched is the Service with clients.
const watched = "watched"

func newFixture(t *testing.T, random *rand.Rand) *fixture {
	t.Helper()
	return &fixture{
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

func (f *fixture) setNode(n *corev1.Node) {
	f.node = n
	f.tracker.SetNode(n)
}

func (f *fixture) setServiceCIDR(c *networkingv1.ServiceCIDR) {
	f.cidrs[c.Name] = c
	f.tracker.SetServiceCIDR(c)
}

func (f *fixture) deleteServiceCIDR(name string) {
	delete(f.cidrs, name)
	f.tracker.DeleteServiceCIDR(name)
}

func (f *fixture) setService(s *corev1.Service) {
	f.services[s.Name] = s
	f.tracker.SetService(s)
}

func (f *fixture) setSlice(s *discoveryv1.EndpointSlice) {
	f.slices[s.Name] = s
	f.tracker.SetEndpointSlice(s)
}

// deleteService deletes a Service and its slices.
func (f *fixture) deleteService(name string) {
	delete(f.services, name)
	f.tracker.DeleteService(namespace, name)
	for _, family := range model.Families {
		slice := fmt.Sprint(name, "-", family)
		delete(f.slices, slice)
		f.tracker.DeleteEndpointSlice(namespace, slice)
	}
}

// restartProxy has a new proxy learn everything anew.
func (f *fixture) restartProxy(t *testing.T) {
	t.Helper()
	f.restart(t)
	f.tracker = newTracker()
	f.tracker.SetNode(f.node)
	for _, c := range f.cidrs {
		f.tracker.SetServiceCIDR(c)
	}
	for _, s := range f.services {
		f.tracker.SetService(s)
	}
	for _, s := range f.slices {
		f.tracker.SetEndpointSlice(s)
	}
	f.tracker.Synced()
}

// syncChanges has the proxy carry out what changed since the last time.
func (f *fixture) syncChanges(t *testing.T) {
	t.Helper()
	changes := f.tracker.Changes()
	if changes == nil {
		return
	}
	f.expectEndpoints(changes)
	f.sync(t, changes)
	f.noteRemovedEndpoints(changes)
}

// expectEndpoints notes the endpoints that may get connections as soon as a Sync begins.
func (f *fixture) expectEndpoints(changes *model.Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, port := range watchedPorts(changes) {
		for _, e := range port.Cluster {
			f.until[e.AddrPort.Addr()] = math.MaxInt
		}
	}
}

// noteRemovedEndpoints notes the endpoints that must not get new connections after a Sync.
func (f *fixture) noteRemovedEndpoints(changes *model.Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.syncs++
	for _, port := range watchedPorts(changes) {
		for addr, until := range f.until {
			gone := !slices.ContainsFunc(port.Cluster, func(e model.Endpoint) bool { return e.AddrPort.Addr() == addr })
			if model.FamilyOf(addr) == port.ID.Family && gone {
				f.until[addr] = min(until, f.syncs-1)
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
func (f *fixture) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs
}

// check returns an error unless a connection that began after that many Syncs may have
// reached the address.
func (f *fixture) check(reached netip.Addr, began int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, ever := f.until[reached]
	if !ever || until < began {
		return fmt.Errorf("a connection that began after Sync %d reached %s, which was an endpoint up to Sync %d", began, reached, until)
	}
	return nil
}
