package stress

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
)

// watchedNumber is that of the Service with clients; those of others follow.
const (
	watchedNumber = 10
	others        = 30
	mostOthers    = 12 // endpoints
	// otherPort is a port on which nobody listens: a connection to another Service's endpoint fails.
	otherPort = 9090
)

// The endpoints of the Service with clients: keepers all the time, extras now and then. All of
// them serve at any time.
var (
	keepers = []byte{1, 2, 3}
	extras  = []byte{11, 12, 13, 14}
)

// populate makes the objects at the beginning, and the pods.
func (f *fixture) populate(t *testing.T) {
	t.Helper()
	var addrs []netip.Addr
	for _, family := range model.Families {
		for _, n := range append(keepers[:len(keepers):len(keepers)], extras...) {
			addrs = append(addrs, podIP(family, n))
		}
	}
	pods, err := f.AddPod("endpoints", addrs...)
	if err != nil {
		t.Fatal(err)
	}
	greet(t, pods)
	greet(t, f.Remote)
	f.setNode(makeNode("a"))
	f.setServiceCIDR(makeServiceCIDR("kubernetes", "10.96.0.0/16", "fd00:10:96::/112"))
	f.setService(makeService(watched, watchedNumber, withSourceRanges()))
	for _, family := range model.Families {
		f.setSlice(f.watchedSlice(family, 0))
	}
	f.tracker.Synced()
}

// withSourceRanges lets all clients of the lab in, and more.
func withSourceRanges(more ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = append([]string{"10.244.0.0/16", "198.51.100.0/24", "fd00:10:244::/48", "2001:db8:51::/48"}, more...)
	}
}

// watchedSlice has the keepers, one of them on node-2, and some extras.
func (f *fixture) watchedSlice(family model.Family, extra int) *discoveryv1.EndpointSlice {
	list := []discoveryv1.Endpoint{makeEndpoint(lab.RemotePodAddrs.Like(podIP(family, 1)), lab.RemoteName)}
	for _, n := range keepers {
		list = append(list, makeEndpoint(podIP(family, n), lab.NodeName))
	}
	for _, i := range f.random.Perm(len(extras))[:extra] {
		list = append(list, makeEndpoint(podIP(family, extras[i]), lab.NodeName))
	}
	if f.random.IntN(3) == 0 {
		for i := range list {
			list[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: f.zone()}}}
		}
	}
	return makeSlice(watched, family, targetPort, list...)
}

func (f *fixture) zone() string { return []string{"a", "b"}[f.random.IntN(2)] }

func (f *fixture) family() model.Family { return model.Families[f.random.IntN(2)] }

// change is something that happens to the fixture, and is synced when do returns.
type change struct {
	name   string
	weight int
	do     func(t *testing.T)
}

func (f *fixture) changes() []change {
	synced := func(do func()) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			do()
			f.syncChanges(t)
		}
	}
	return []change{
		{"another Service", 40, synced(f.changeOther)},
		{"endpoints of the Service", 25, synced(f.changeEndpoints)},
		{"the node's zone", 8, synced(f.changeZone)},
		{"the Service's source ranges", 8, synced(f.changeSourceRanges)},
		{"a ServiceCIDR", 6, synced(f.changeServiceCIDR)},
		{"a lot at once", 8, synced(f.changeALot)},
		{"a restart", 3, f.restartAndSync},
		{"somebody else's change", 2, f.repair},
	}
}

// choose draws a change.
func (f *fixture) choose() change {
	all, total := f.changes(), 0
	for _, c := range all {
		total += c.weight
	}
	drawn := f.random.IntN(total)
	for _, c := range all {
		if drawn -= c.weight; drawn < 0 {
			return c
		}
	}
	panic("unreachable")
}

func (f *fixture) changeEndpoints() {
	f.setSlice(f.watchedSlice(f.family(), f.random.IntN(len(extras)+1)))
}

func (f *fixture) changeZone() { f.setNode(makeNode([]string{"", "a", "b", "c"}[f.random.IntN(4)])) }

func (f *fixture) changeSourceRanges() {
	var more []string
	for range f.random.IntN(4) {
		more = append(more, fmt.Sprintf("192.0.%d.0/%d", f.random.IntN(256), 20+f.random.IntN(5)))
	}
	f.setService(makeService(watched, watchedNumber, withSourceRanges(more...)))
}

func (f *fixture) changeServiceCIDR() {
	const second = "second"
	if f.cidrs[second] != nil {
		f.deleteServiceCIDR(second)
		return
	}
	f.setServiceCIDR(makeServiceCIDR(second, "10.97.0.0/16"))
}

func (f *fixture) changeALot() {
	for range 10 {
		f.changeOther()
	}
	f.changeEndpoints()
	f.changeZone()
}

// changeOther makes, changes or deletes another Service.
func (f *fixture) changeOther() {
	number := f.random.IntN(others)
	name := fmt.Sprint("other-", number)
	if f.services[name] != nil && f.random.IntN(3) == 0 {
		f.deleteService(name)
		return
	}
	f.setService(makeService(name, watchedNumber+1+byte(number), f.randomKind()))
	for _, family := range model.Families {
		var list []discoveryv1.Endpoint
		for i := range f.random.IntN(mostOthers + 1) {
			list = append(list, makeEndpoint(podIP(family, 100+byte(i)), []string{lab.NodeName, lab.RemoteName}[f.random.IntN(2)]))
		}
		f.setSlice(makeSlice(name, family, otherPort, list...))
	}
}

// randomKind makes a Service one of many kinds.
func (f *fixture) randomKind() func(*corev1.Service) {
	coin := func() bool { return f.random.IntN(2) == 0 }
	clusterOnly, local, internal, guarded, sticky := coin(), coin(), coin(), coin(), coin()
	return func(s *corev1.Service) {
		if clusterOnly {
			s.Spec.Type, s.Spec.Ports[0].NodePort, s.Status = corev1.ServiceTypeClusterIP, 0, corev1.ServiceStatus{}
		} else if local {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if internal {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		if guarded && !clusterOnly {
			withSourceRanges()(s)
		}
		if sticky {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
	}
}

func (f *fixture) restartAndSync(t *testing.T) {
	t.Helper()
	f.restartProxy(t)
	f.syncChanges(t)
}

// repair has somebody else change the tables, and the proxy undo that.
func (f *fixture) repair(t *testing.T) {
	t.Helper()
	f.meddle(t)
	repaired, err := f.backend.Check(klog.NewContext(t.Context(), logr.Discard()))
	if err != nil || !repaired {
		t.Fatalf("Check = %v, %v; want a repair", repaired, err)
	}
}

// clients are eight, over every kind of address and from everywhere.
func (f *fixture) clients() []tcpClient {
	at := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	return []tcpClient{
		{from: f.Client, to: at(clusterIP(model.IPv4, watchedNumber), servicePort)},
		{from: f.Client, to: at(balancerIP(model.IPv6, watchedNumber), servicePort)},
		{from: f.Node, to: at(clusterIP(model.IPv6, watchedNumber), servicePort)},
		{from: f.Node, to: at(lab.NodeAddrs.IPv4, nodePort(watchedNumber))},
		{from: f.Outside, to: at(balancerIP(model.IPv4, watchedNumber), servicePort)},
		{from: f.Outside, to: at(lab.NodeAddrs.IPv6, nodePort(watchedNumber)), source: lab.SecondOutsideAddrs.IPv6},
		{from: f.Outside, to: at(externalIP(model.IPv6, watchedNumber), servicePort)},
		{from: f.Remote, to: at(externalIP(model.IPv4, watchedNumber), servicePort)},
	}
}

// How often each client uses its lasting connection, and dials anew.
const (
	echoEvery = 2 * time.Millisecond
	dialEvery = 4 * time.Millisecond
)

// startTraffic opens a lasting connection for each client and keeps it busy, and has each
// dial the Service again and again.
func (f *fixture) startTraffic(t *testing.T) *traffic {
	t.Helper()
	tr := newTraffic()
	for _, c := range f.clients() {
		var lasting *connection
		if err := c.from.Do(func() (err error) {
			lasting, err = c.open()
			return err
		}); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		t.Cleanup(func() { lasting.Close() })
		lines := 0
		tr.every(echoEvery, c, func() error {
			if err := lasting.echo(fmt.Sprint("line ", lines)); err != nil {
				return fmt.Errorf("the connection to %s broke after %d lines: %f", lasting.reached, lines, err)
			}
			lines++
			tr.countEcho()
			return nil
		})
		tr.every(dialEvery, c, func() error { return f.dialOnce(c, tr) })
	}
	return tr
}

func (f *fixture) dialOnce(c tcpClient, tr *traffic) error {
	syncs, begin := f.now(), time.Now()
	conn, err := c.open()
	if err != nil {
		return fmt.Errorf("a new connection failed after %v: %f", time.Since(begin), err)
	}
	defer conn.abort()
	tr.countShort(time.Since(begin))
	return f.check(conn.reached, syncs)
}
