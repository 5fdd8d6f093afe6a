package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// affinityNodePort and affinityExternalIPs are further frontends of the Service.
const affinityNodePort = 30080

var affinityExternalIPs = [2]netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8:192::10")}

// affinityTest is a Service with session affinity, its endpoints and many clients outside the cluster.
type affinityTest struct {
	*testing.T
	lab     *lab.Lab
	backend *proxy.Backend
	timeout time.Duration
	// hash is compiler.Config.AffinityHash.
	hash    bool
	clients []netip.Addr
	// home has the endpoint of each client.
	home map[netip.Addr]string
}

var (
	affinityClientIPs = [2]netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
	affinityClients   = [2]netip.Prefix{netip.MustParsePrefix("198.18.0.0/22"), netip.MustParsePrefix("2001:db8:18::/112")}
)

// newAffinityTest gives the host outside n addresses, half of each family.
func newAffinityTest(t *testing.T, n int, timeout time.Duration) *affinityTest {
	a := &affinityTest{T: t, lab: lab.ForTest(t), timeout: timeout, home: map[netip.Addr]string{}}
	for _, network := range affinityClients {
		if err := a.lab.Outside.Do(func() error { return ownAll(network) }); err != nil {
			t.Fatal(err)
		}
		addr := network.Addr()
		for range n / 2 {
			addr = addr.Next()
			a.clients = append(a.clients, addr)
		}
	}
	a.restart(affinityEndpoints...)
	return a
}

// ownAll makes the whole network this namespace's own.
func ownAll(network netip.Prefix) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: network.Addr().AsSlice(), Mask: net.CIDRMask(network.Bits(), network.Addr().BitLen())},
	})
}

var affinityEndpoints = []string{"a", "b", "c", "d", "e"}

// serve starts a pod that tells each client its name.
func (a *affinityTest) serve(name string) {
	a.Helper()
	addrs := affinityAddrs(name)
	pod, err := a.lab.AddPod(name, addrs[:]...)
	if err != nil {
		a.Fatal(err)
	}
	var l net.Listener
	if err := pod.Do(func() (err error) {
		l, err = net.Listen("tcp", ":8080")
		return err
	}); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, name)
			conn.Close()
		}
	}()
}

func affinityAddrs(name string) [2]netip.Addr {
	return [2]netip.Addr{
		netip.AddrFrom4([4]byte{10, 244, 1, name[0]}),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%x", name[0])),
	}
}

// ports is the Service in both families.
func (a *affinityTest) ports(service string, timeout time.Duration, endpoints ...string) *model.Changes {
	changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{}}
	for i, family := range []model.Family{model.IPv4, model.IPv6} {
		p := &model.ServicePort{
			ID:        model.PortID{Namespace: "shop", Service: service, Protocol: model.TCP, Family: family},
			ClusterIP: affinityClientIPs[i], Port: 80, AffinityTimeout: timeout,
		}
		if service == "web" {
			p.NodePort, p.LoadBalancerIPs = affinityNodePort, []netip.Addr{affinityExternalIPs[i]}
		} else {
			p.Port = uint16(1000 + len(service))
		}
		for _, name := range endpoints {
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(affinityAddrs(name)[i], 8080), Local: true})
		}
		slices.SortFunc(p.Cluster, model.CompareEndpoints)
		p.Local = p.Cluster
		changes.Ports[p.ID] = p
	}
	return changes
}

func (a *affinityTest) sync(changes *model.Changes) {
	a.Helper()
	if err := a.backend.Sync(context.Background(), changes); err != nil {
		a.Fatal(err)
	}
}

// restart is a new process that finds the endpoints.
func (a *affinityTest) restart(endpoints ...string) {
	a.Helper()
	var err error
	config := compiler.Default()
	config.AffinityHash = a.hash
	a.backend, err = proxy.NewBackend(lab.Conn(a, a.lab.Node), config, proxy.Hooks{})
	if err != nil {
		a.Fatal(err)
	}
	flows, err := conntrack.NewCleaner(conntrack.CleanerOptions{NetNS: int(a.lab.Node.NetNS().Fd())})
	if err != nil {
		a.Fatal(err)
	}
	a.backend.RemoveStaleFlows(flows)
	full := a.ports("web", a.timeout, endpoints...)
	full.Full = true
	full.Node = &model.Node{Name: lab.NodeName, IPs: []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6}}
	a.sync(full)
}

// affinityFrontend returns the address of a frontend for one IP family.
type affinityFrontend func(family int) netip.AddrPort

func overClusterIP(family int) netip.AddrPort {
	return netip.AddrPortFrom(affinityClientIPs[family], 80)
}

func overLoadBalancer(family int) netip.AddrPort {
	return netip.AddrPortFrom(affinityExternalIPs[family], 80)
}

func overNodePort(family int) netip.AddrPort {
	return netip.AddrPortFrom([2]netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6}[family], affinityNodePort)
}

// visit has every client dial the Service's ClusterIP once and returns who served it.
func (a *affinityTest) visit() map[netip.Addr]string {
	a.Helper()
	return a.visitOver(overClusterIP)
}

func (a *affinityTest) visitOver(frontend affinityFrontend) map[netip.Addr]string {
	a.Helper()
	names := make([]string, len(a.clients))
	var group errgroup.Group
	group.SetLimit(32)
	for i, client := range a.clients {
		group.Go(func() (err error) {
			names[i], err = a.dial(client, frontend)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		a.Fatal(err)
	}
	out := map[netip.Addr]string{}
	for i, client := range a.clients {
		out[client] = names[i]
	}
	return out
}

// bindAnyAddr lets an IPv6 socket have an address of a network that is local by its route only.
func bindAnyAddr(network, _ string, conn syscall.RawConn) (err error) {
	if network != "tcp6" {
		return nil
	}
	if failed := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) }); failed != nil {
		return failed
	}
	return err
}

func (a *affinityTest) dial(client netip.Addr, frontend affinityFrontend) (string, error) {
	to := frontend(0)
	if client.Is6() {
		to = frontend(1)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: client.AsSlice()}, Timeout: await.Patience, Control: bindAnyAddr}
	var conn net.Conn
	if err := a.lab.Outside.Do(func() (err error) {
		conn, err = dialer.Dial("tcp", to.String())
		return err
	}); err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		return "", err
	}
	name, err := io.ReadAll(conn)
	return string(name), err
}

// expectHome checks that all clients are served where they were, or, where that endpoint is gone, somewhere
// else, which is their home from then on.
func (a *affinityTest) expectHome(after string, gone ...string) {
	a.Helper()
	a.expectHomeOver(overClusterIP, after, gone...)
}

func (a *affinityTest) expectHomeOver(frontend affinityFrontend, after string, gone ...string) {
	a.Helper()
	moved := 0
	for client, name := range a.visitOver(frontend) {
		home := a.home[client]
		switch {
		case slices.Contains(gone, name):
			a.Errorf("after %s, %s was sent to %s, which is gone", after, client, name)
		case name == home:
		case slices.Contains(gone, home):
			moved++
			a.home[client] = name
		default:
			a.Errorf("after %s, %s was sent to %s, was at home at %s", after, client, name, home)
		}
	}
	if len(gone) > 0 && moved == 0 {
		a.Errorf("after %s, no client had to move: nothing was tested", after)
	}
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	t.Run("a thousand clients keep their endpoints", testThousandClientsKeepTheirEndpoints)
	t.Run("edits keep clients where they are", testAffinityOfEdits)
	t.Run("lost maps cost no client its endpoint", testAffinityOfLostMaps)
	t.Run("ends with its timeout, its Service and its setting", testAffinityEndsWithItsTimeoutItsServiceAndItsSetting)
}

func testThousandClientsKeepTheirEndpoints(t *testing.T) {
	a := newAffinityTest(t, 1000, 3*time.Hour)
	for _, name := range append(affinityEndpoints, "f") {
		a.serve(name)
	}
	a.home = a.visit()
	a.expectHome("nothing")

	for i := range 50 {
		switch rand.IntN(3) {
		case 0:
			a.sync(a.ports("other", 3*time.Hour, affinityEndpoints[:1+rand.IntN(5)]...))
		case 1:
			a.sync(a.ports("another", 0, affinityEndpoints[rand.IntN(5):]...))
		default: // an endpoint that nobody is at home at comes or goes
			a.sync(a.ports("web", a.timeout, append([]string{"f"}, affinityEndpoints...)[rand.IntN(2):]...))
		}
		if i%10 == 9 {
			a.sync(a.ports("web", a.timeout, affinityEndpoints...))
			a.expectHome(fmt.Sprintf("%d changes", i+1))
		}
	}

	a.restart(affinityEndpoints...)
	a.expectHome("a restart of the proxy")

	for _, family := range []string{"ip", "ip6"} {
		lab.Nft(t, a.lab.Node, "", "flush", "chain", family, "kube-proxy", "services")
	}
	if repaired, err := a.backend.Check(context.Background()); !repaired || err != nil {
		t.Fatalf("Check = %v, %v; want a repair", repaired, err)
	}
	a.expectHome("a rebuild of the tables")

	a.flush(len(a.clients))
	a.expectHome("somebody else flushed the ruleset")

	a.sync(a.ports("web", a.timeout, "b", "c", "d", "e"))
	a.awaitNobodyAt("a")
	a.expectHome("the removal of an endpoint", "a")
	a.expectHome("another visit")

	a.restart("c", "d", "e")
	a.awaitNobodyAt("b")
	a.expectHome("a restart that finds an endpoint gone", "b")
	a.expectHome("another visit")

	a.sync(a.ports("web", a.timeout, affinityEndpoints...))
	a.expectHome("the return of the endpoints")
}

// testAffinityOfEdits changes a Service in ways that take no endpoint away.
func testAffinityOfEdits(t *testing.T) {
	a := newAffinityTest(t, 40, 3*time.Hour)
	for _, name := range affinityEndpoints {
		a.serve(name)
	}
	// Clients whose endpoint is not the one that the hash of their address chooses show that it is remembered.
	a.sync(a.ports("web", a.timeout, "a", "b"))
	a.home = a.visit()
	a.sync(a.ports("web", a.timeout, affinityEndpoints...))
	a.expectHome("more endpoints")

	edit := func(change func(*model.ServicePort)) {
		changes := a.ports("web", a.timeout, affinityEndpoints...)
		for _, p := range changes.Ports {
			change(p)
		}
		a.sync(changes)
	}
	edit(func(p *model.ServicePort) { p.AffinityTimeout = time.Hour })
	a.expectHome("another timeout")
	a.expectHomeOver(overLoadBalancer, "dialing the load balancer IP")
	a.expectHomeOver(overNodePort, "dialing the node port")
	edit(func(p *model.ServicePort) { p.ExternalPolicy = model.PolicyLocal })
	a.expectHomeOver(overLoadBalancer, "externalTrafficPolicy Local")
	a.expectHomeOver(overNodePort, "externalTrafficPolicy Local, dialing the node port")
	edit(func(p *model.ServicePort) { p.ExternalPolicy, p.InternalPolicy = model.PolicyLocal, model.PolicyLocal })
	a.expectHome("internalTrafficPolicy Local")
	edit(func(*model.ServicePort) {})
	a.expectHome("policies Cluster again")
	a.expectHomeOver(overLoadBalancer, "policies Cluster again, dialing the load balancer IP")
	if n := a.learnedElements(); n != len(a.clients) {
		t.Errorf("the kernel remembers %d clients, want each of %d once", n, len(a.clients))
	}
}

// testAffinityOfLostMaps loses the tables, with and without conntrack's memory.
func testAffinityOfLostMaps(t *testing.T) {
	a := newAffinityTest(t, 40, 3*time.Hour)
	for _, name := range affinityEndpoints {
		a.serve(name)
	}
	a.home = a.visit()
	a.flush(len(a.clients))
	a.expectHome("conntrack restored the maps")

	a.hash = true
	a.restart(affinityEndpoints...)
	flush := func() {
		t.Helper()
		if err := a.lab.Node.FlushConntrack(); err != nil {
			t.Fatal(err)
		}
		a.flush(0)
	}
	flush()
	a.home = a.visit()
	flush()
	a.expectHome("nothing remembers, and the hash of the address decides as before")
}

// flush has somebody flush the ruleset, and the proxy repair it and restore that many clients.
func (a *affinityTest) flush(restored int) {
	a.Helper()
	lab.Nft(a, a.lab.Node, "", "flush", "ruleset")
	a.watchUntil("the repair", func() error {
		if err := lab.TableError(lab.Conn(a, a.lab.Node), a.backend.Tables()); err != nil {
			return err
		}
		if n := a.learnedElements(); n != restored {
			return fmt.Errorf("the kernel remembers %d clients, want %d", n, restored)
		}
		return nil
	})
}

// awaitNobodyAt waits until the kernel remembers no client of an endpoint that went. The Sync that takes the endpoint
// away deletes the clients that it can read in 50 ms, and leaves the others to what runs beside it.
func (a *affinityTest) awaitNobodyAt(endpoint string) {
	a.Helper()
	a.watchUntil("no client is at "+endpoint, func() error {
		left := 0
		for _, e := range a.learned() {
			for _, addr := range affinityAddrs(endpoint) {
				if strings.HasPrefix(string(e.Value), string(nft.AddrData(addr))) {
					left++
				}
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are", left)
		}
		return nil
	})
}

// watchUntil has the proxy watch its tables until check returns nil.
func (a *affinityTest) watchUntil(subject string, check func() error) {
	a.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { a.backend.Watch(ctx) })
	await.Until(a.T, subject, check)
}

// learnedElements returns the number of pairs of client and endpoint that the kernel remembers.
func (a *affinityTest) learnedElements() int {
	a.Helper()
	return len(a.learned())
}

func (a *affinityTest) learned() (all []nft.Element) {
	a.Helper()
	c := lab.Conn(a, a.lab.Node)
	for _, family := range nft.Families {
		var table *nft.Table
		await.Until(a.T, "a listing between two commits", func() (err error) {
			table, err = c.ReadTable(context.Background(), family, compiler.TableName)
			if err == nil && table == nil {
				err = errors.New("there is no table")
			}
			return err
		})
		for _, set := range table.Sets {
			if !compiler.IsAffinityMap(set.Name) {
				continue
			}
			elements, err := c.ReadElements(context.Background(), table.Family, table.Name, set)
			if err != nil {
				a.Fatal(err)
			}
			all = append(all, elements...)
		}
	}
	return all
}

func testAffinityEndsWithItsTimeoutItsServiceAndItsSetting(t *testing.T) {
	a := newAffinityTest(t, 20, time.Hour)
	for _, name := range affinityEndpoints {
		a.serve(name)
	}
	a.visit()
	if n := a.learnedElements(); n != len(a.clients) {
		t.Errorf("the kernel remembers %d clients, want %d", n, len(a.clients))
	}
	a.sync(a.ports("web", 0, affinityEndpoints...))
	if n := a.learnedElements(); n != 0 {
		t.Errorf("without affinity the kernel remembers %d clients", n)
	}
	a.sync(a.ports("web", time.Second, affinityEndpoints...))
	a.visit()
	await.Until(t, "the end of a second's affinity", func() error {
		if n := a.learnedElements(); n > 0 {
			return fmt.Errorf("the kernel remembers %d clients", n)
		}
		return nil
	})
	a.sync(a.ports("web", time.Hour, affinityEndpoints...))
	a.visit()
	gone := a.ports("web", 0)
	for id := range gone.Ports {
		gone.Ports[id] = nil
	}
	a.sync(gone)
	if n := a.learnedElements(); n != 0 {
		t.Errorf("without the Service the kernel remembers %d clients", n)
	}
}
