package health_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

var (
	loopback4 = netip.MustParsePrefix("127.0.0.1/32")
	loopback6 = netip.MustParsePrefix("::1/128")
)

func always() bool { return true }

// freePort returns a port that nobody has in either family.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 1000 {
		port := 20_000 + nextPort.Add(1)%10_000
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		l6, err := net.Listen("tcp6", fmt.Sprintf("[::1]:%d", port))
		l.Close()
		if err == nil {
			l6.Close()
			return uint16(port)
		}
	}
	t.Fatal("no free port")
	return 0
}

// nextPort makes freePort give each port once, which the kernel does not (port 0), and none that it gives to clients
// meanwhile (net.ipv4.ip_local_port_range).
var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(10_000)) }

// occupy takes a port as another program would.
func occupy(t *testing.T, port uint16) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func endpoints(list ...string) (out []model.Endpoint) {
	for _, text := range list {
		out = append(out, model.Endpoint{AddrPort: netip.MustParseAddrPort(text), Local: true})
	}
	return out
}

// port returns a port of Service shop/name in a family, with a health check port and local endpoints.
func port(name, portName string, family model.Family, healthCheck uint16, local ...string) *model.ServicePort {
	return &model.ServicePort{
		ID:                  model.PortID{Namespace: "shop", Service: name, Port: portName, Protocol: model.TCP, Family: family},
		ExternalPolicy:      model.PolicyLocal,
		HealthCheckNodePort: healthCheck,
		Local:               endpoints(local...),
	}
}

func changes(ports ...*model.ServicePort) *model.Changes {
	return &model.Changes{Ports: model.PortsByID(ports...)}
}

func full(ports ...*model.ServicePort) *model.Changes {
	c := changes(ports...)
	c.Full, c.Node = true, &model.Node{Name: "node-1", IPs: []netip.Addr{loopback4.Addr(), loopback6.Addr()}}
	return c
}

func newServices(options health.ServicesOptions) *health.Services {
	if options.Ready == nil {
		options.Ready = always
	}
	return health.NewServices(options)
}

// check returns what a load balancer learns at a port: the status code and the weight, such
// as "200 2", or "closed" when nobody listens.
func check(t *testing.T, host string, port uint16) string {
	t.Helper()
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	if conn, err := net.Dial("tcp", address); err != nil {
		return "closed"
	} else {
		conn.Close()
	}
	response, _ := get(t, "http://"+address+"/healthz")
	return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"))
}

func expectCheck(t *testing.T, host string, port uint16, want string) {
	t.Helper()
	if got := check(t, host, port); got != want {
		t.Errorf("%s port %d: %s, want %s", host, port, got, want)
	}
}

func TestServices(t *testing.T) {
	t.Run("answer as kube-proxy does", testHealthCheckAnswersAsKubeProxyDoes)
	t.Run("count local endpoints by address", testLocalEndpointsAreCountedByAddress)
	t.Run("follow the model", testServersFollowTheModel)
	t.Run("end with the context", testServersEndWithTheContext)
	t.Run("listen on node port addresses", testServersListenOnNodePortAddresses)
	t.Run("follow the node's addresses", testServersFollowTheNodesAddresses)
	t.Run("tell once of a taken port, and try again", testTakenPortIsToldOnceAndTriedAgain)
	t.Run("try a taken port again at a later change", testLaterChangeTriesATakenPortAgain)
	t.Run("listen on other addresses while one is taken", testServersListenOnOtherAddressesWhileOneIsTaken)
	t.Run("go on while the machine's addresses cannot be listed", testServersGoOnWhileAddressesCannotBeListed)
	t.Run("listen on addresses that come later", testServersListenOnAddressesThatComeLater)
	t.Run("tries end with the context", testTriesEndWithTheContext)
}

// The body and the headers are those of kube-proxy v1.37, byte for byte.
func testHealthCheckAnswersAsKubeProxyDoes(t *testing.T) {
	p := freePort(t)
	var healthy atomic.Bool
	healthy.Store(true)
	s := newServices(health.ServicesOptions{Ready: healthy.Load, CIDRs: []netip.Prefix{loopback4}})
	expect := func(code int, weight, body string) {
		t.Helper()
		response, got := get(t, fmt.Sprintf("http://127.0.0.1:%d/", p))
		if diff := cmp.Diff(body, got); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
		if response.StatusCode != code {
			t.Errorf("status %d, want %d", response.StatusCode, code)
		}
		for header, want := range map[string]string{
			"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": weight,
		} {
			if got := response.Header.Get(header); got != want {
				t.Errorf("%s is %q, want %q", header, got, want)
			}
		}
	}

	s.Apply(t.Context(), full(port("web", "http", model.IPv4, p, "10.244.1.5:8080", "10.244.1.6:8080")))
	expect(http.StatusOK, "2", "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}")
	healthy.Store(false)
	expect(http.StatusServiceUnavailable, "2", "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n}")
	healthy.Store(true)
	s.Apply(t.Context(), changes(port("web", "http", model.IPv4, p)))
	expect(http.StatusServiceUnavailable, "0", "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}")
}

func testLocalEndpointsAreCountedByAddress(t *testing.T) {
	terminating := func(p *model.ServicePort) *model.ServicePort {
		p.LocalTerminating = true
		return p
	}
	cases := []struct {
		name  string
		ports func(p uint16) []*model.ServicePort
		want  string
	}{
		{"an address that serves two ports counts once", func(p uint16) []*model.ServicePort {
			return []*model.ServicePort{port("web", "http", model.IPv4, p, "10.244.1.5:80"), port("web", "https", model.IPv4, p, "10.244.1.5:443")}
		}, "200 1"},
		{"the addresses of all ports count", func(p uint16) []*model.ServicePort {
			return []*model.ServicePort{port("web", "http", model.IPv4, p, "10.244.1.5:80"), port("web", "https", model.IPv4, p, "10.244.1.6:443")}
		}, "200 2"},
		{"the other family does not count", func(p uint16) []*model.ServicePort {
			return []*model.ServicePort{port("web", "http", model.IPv4, p), port("web", "http", model.IPv6, p, "[fd00::5]:80")}
		}, "503 0"},
		{"endpoints that terminate do not count", func(p uint16) []*model.ServicePort {
			return []*model.ServicePort{terminating(port("web", "http", model.IPv4, p, "10.244.1.5:80"))}
		}, "503 0"},
		{"what terminates for one port may be ready for another", func(p uint16) []*model.ServicePort {
			return []*model.ServicePort{terminating(port("web", "http", model.IPv4, p, "10.244.1.5:80")), port("web", "https", model.IPv4, p, "10.244.1.6:443")}
		}, "200 1"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := freePort(t)
			s := newServices(health.ServicesOptions{CIDRs: []netip.Prefix{loopback4, loopback6}})
			s.Apply(t.Context(), full(tc.ports(p)...))
			expectCheck(t, "127.0.0.1", p, tc.want)
		})
	}
}

func testServersFollowTheModel(t *testing.T) {
	p, q := freePort(t), freePort(t)
	s := newServices(health.ServicesOptions{CIDRs: []netip.Prefix{loopback4, loopback6}})
	steps := []struct {
		name    string
		changes *model.Changes
		// 127.0.0.1:p, [::1]:p, 127.0.0.1:q
		want [3]string
	}{
		{"both families of a Service", full(port("web", "http", model.IPv4, p, "10.244.1.5:80"), port("web", "http", model.IPv6, p, "[fd00::5]:80", "[fd00::6]:80")), [3]string{"200 1", "200 2", "closed"}},
		{"a second Service leaves the first alone", changes(port("api", "", model.IPv4, q, "10.244.1.7:80")), [3]string{"200 1", "200 2", "200 1"}},
		{"one family loses its endpoints", changes(port("web", "http", model.IPv6, p)), [3]string{"200 1", "503 0", "200 1"}},
		{"one family goes", &model.Changes{Ports: map[model.PortID]*model.ServicePort{port("web", "http", model.IPv6, p).ID: nil}}, [3]string{"200 1", "closed", "200 1"}},
		{"a second port with other endpoints", changes(port("web", "https", model.IPv4, p, "10.244.1.8:443")), [3]string{"200 2", "closed", "200 1"}},
		{"the first port goes", &model.Changes{Ports: map[model.PortID]*model.ServicePort{port("web", "http", model.IPv4, p).ID: nil}}, [3]string{"200 1", "closed", "200 1"}},
		{"two Services swap their ports", changes(port("web", "https", model.IPv4, q, "10.244.1.8:443"), port("api", "", model.IPv4, p)), [3]string{"503 0", "closed", "200 1"}},
		{"a Service does not need a health check any more", changes(port("api", "", model.IPv4, 0)), [3]string{"closed", "closed", "200 1"}},
		{"what Full does not name is gone", full(port("api", "", model.IPv4, p, "10.244.1.7:80")), [3]string{"200 1", "closed", "closed"}},
		{"a change of something else", changes(port("other", "", model.IPv4, 0, "10.244.1.7:80")), [3]string{"200 1", "closed", "closed"}},
	}
	for _, step := range steps {
		s.Apply(t.Context(), step.changes)
		got := [3]string{check(t, "127.0.0.1", p), check(t, "::1", p), check(t, "127.0.0.1", q)}
		if got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

func testServersEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := freePort(t)
	s := newServices(health.ServicesOptions{CIDRs: []netip.Prefix{loopback4}})
	s.Apply(ctx, full(port("web", "http", model.IPv4, p)))
	expectCheck(t, "127.0.0.1", p, "503 0")
	cancel()
	await.True(t, "the port is free", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	s.Apply(ctx, full(port("web", "http", model.IPv4, p)))
	expectCheck(t, "127.0.0.1", p, "closed")
}

func testServersListenOnNodePortAddresses(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, text := range list {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	nodeIPs := func(list ...string) (out []netip.Addr) {
		for _, text := range list {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	// All of 127.0.0.0/8 is local, but only 127.0.0.1 is an address of an interface.
	cases := []struct {
		name    string
		options health.ServicesOptions
		nodeIPs []netip.Addr
		// 127.0.0.1, 127.0.0.2, ::1
		want   [3]string
		failed bool
	}{
		{"all addresses of IPv4", health.ServicesOptions{CIDRs: prefixes("0.0.0.0/0")}, nil, [3]string{"503 0", "503 0", "closed"}, false},
		{"all addresses of IPv6", health.ServicesOptions{CIDRs: prefixes("::/0")}, nil, [3]string{"closed", "closed", "503 0"}, false},
		{"all addresses, one of them named as well", health.ServicesOptions{CIDRs: prefixes("127.0.0.1/32", "0.0.0.0/0")}, nil, [3]string{"503 0", "503 0", "closed"}, false},
		{"addresses of an interface in a CIDR", health.ServicesOptions{CIDRs: prefixes("127.0.0.0/8", "::1/128")}, nil, [3]string{"503 0", "closed", "503 0"}, false},
		{"overlapping CIDRs", health.ServicesOptions{CIDRs: prefixes("127.0.0.0/8", "127.0.0.0/30")}, nil, [3]string{"503 0", "closed", "closed"}, false},
		{"the node's addresses", health.ServicesOptions{Primary: true}, nodeIPs("127.0.0.1", "::1"), [3]string{"503 0", "closed", "503 0"}, false},
		{"the node's only address", health.ServicesOptions{Primary: true}, nodeIPs("::1"), [3]string{"closed", "closed", "503 0"}, false},
		{"an address that no interface has", health.ServicesOptions{CIDRs: prefixes("192.0.2.1/32", "::1/128")}, nil, [3]string{"closed", "closed", "503 0"}, true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := freePort(t)
			failed := false
			tc.options.OnFailure = func(string, string, error) { failed = true }
			s := newServices(tc.options)
			c := full(port("web", "", model.IPv4, p), port("web", "", model.IPv6, p))
			c.Node.IPs = tc.nodeIPs
			s.Apply(t.Context(), c)
			got := [3]string{check(t, "127.0.0.1", p), check(t, "127.0.0.2", p), check(t, "::1", p)}
			if got != tc.want {
				t.Errorf("127.0.0.1, 127.0.0.2, ::1: %v, want %v", got, tc.want)
			}
			if failed != tc.failed {
				t.Errorf("reported a failure: %v, want %v", failed, tc.failed)
			}
		})
	}
}

func testServersFollowTheNodesAddresses(t *testing.T) {
	p := freePort(t)
	s := newServices(health.ServicesOptions{Primary: true})
	c := full(port("web", "", model.IPv4, p), port("web", "", model.IPv6, p))
	c.Node.IPs = []netip.Addr{loopback4.Addr()}
	s.Apply(t.Context(), c)
	expectCheck(t, "127.0.0.1", p, "503 0")
	expectCheck(t, "::1", p, "closed")
	s.Apply(t.Context(), &model.Changes{Node: &model.Node{IPs: []netip.Addr{loopback6.Addr()}}})
	expectCheck(t, "127.0.0.1", p, "closed")
	expectCheck(t, "::1", p, "503 0")
}

// fakeClock runs what is due on a goroutine of its own, as the machine's clock does.
type fakeClock struct{ *clocktesting.FakeClock }

func newFakeClock() fakeClock { return fakeClock{clocktesting.NewFakeClock(start)} }

func (c fakeClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	return c.FakeClock.AfterFunc(d, func() { go f() })
}

// servers are the numbers that OnListening was called with last.
type servers struct{ listening, failing int }

func testTakenPortIsToldOnceAndTriedAgain(t *testing.T) {
	taken, free := freePort(t), freePort(t)
	other := occupy(t, taken)
	fake := newFakeClock()
	var logs, failures []string
	last := make(chan servers, 100)
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{}))
	s := newServices(health.ServicesOptions{
		CIDRs: []netip.Prefix{loopback4},
		Clock: fake,
		OnFailure: func(namespace, service string, err error) {
			failures = append(failures, namespace+"/"+service+": "+err.Error())
		},
		OnListening: func(listening, failing int) { last <- servers{listening, failing} },
	})
	expectServers := func(want servers) {
		t.Helper()
		select {
		case got := <-last:
			if got != want {
				t.Errorf("servers are %+v, want %+v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was tried")
		}
	}

	s.Apply(ctx, full(port("web", "", model.IPv4, taken, "10.244.1.5:80"), port("api", "", model.IPv4, free, "10.244.1.6:80")))
	expectServers(servers{listening: 1, failing: 1})
	expectCheck(t, "127.0.0.1", free, "200 1")
	wantFailure := fmt.Sprintf("shop/web: healthCheckNodePort %d: listen tcp4 127.0.0.1:%d: bind: address already in use; "+
		"until that is mended, load balancers take this node for one without endpoints", taken, taken)
	if diff := cmp.Diff([]string{wantFailure}, failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if len(logs) != 1 || !strings.Contains(logs[0], "web") || !strings.Contains(logs[0], strconv.Itoa(int(taken))) {
		t.Errorf("logged %q, want one line with the Service and its port", logs)
	}

	// Each try fails in the same way, and says nothing; the waits grow.
	for _, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		fake.Step(wait - 1)
		select {
		case got := <-last:
			t.Fatalf("tried before %v: %+v", wait, got)
		default:
		}
		fake.Step(1)
		expectServers(servers{listening: 1, failing: 1})
	}
	s.Apply(ctx, changes(port("other", "", model.IPv4, 0)))
	expectServers(servers{listening: 1, failing: 1})
	if len(logs) != 1 || len(failures) != 1 {
		t.Errorf("told again: %q, %q", logs, failures)
	}

	other.Close()
	fake.Step(8 * time.Second)
	expectServers(servers{listening: 2})
	expectCheck(t, "127.0.0.1", taken, "200 1")
	if len(logs) != 2 {
		t.Errorf("logged %q, want a second line that the port is served now", logs)
	}
	// From now on it looks for new addresses only.
	fake.Step(10 * time.Second)
	expectServers(servers{listening: 2})
}

func testLaterChangeTriesATakenPortAgain(t *testing.T) {
	taken := freePort(t)
	other := occupy(t, taken)
	fake := newFakeClock()
	s := newServices(health.ServicesOptions{CIDRs: []netip.Prefix{loopback4}, Clock: fake})
	s.Apply(t.Context(), full(port("web", "", model.IPv4, taken, "10.244.1.5:80")))
	other.Close()
	expectCheck(t, "127.0.0.1", taken, "closed")
	s.Apply(t.Context(), changes(port("other", "", model.IPv4, 0)))
	expectCheck(t, "127.0.0.1", taken, "200 1")
}

// machine stands in for the machine's addresses.
type machine struct {
	mu    sync.Mutex
	addrs []netip.Addr
	err   error
}

func (m *machine) become(err error, addrs ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addrs, m.err = nil, err
	for _, a := range addrs {
		m.addrs = append(m.addrs, netip.MustParseAddr(a))
	}
}

func (m *machine) within([]netip.Prefix) (map[model.Family][]netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return map[model.Family][]netip.Addr{model.IPv4: m.addrs}, m.err
}

// looking returns Services on the machine, and a function that waits for their next look and returns their numbers.
func looking(t *testing.T, m *machine) (*health.Services, fakeClock, func() servers) {
	t.Helper()
	fake, looks := newFakeClock(), make(chan servers, 100)
	s := newServices(health.ServicesOptions{
		Addresses: m.within, Clock: fake, OnListening: func(listening, failing int) { looks <- servers{listening, failing} },
	})
	return s, fake, func() servers {
		t.Helper()
		select {
		case got := <-looks:
			return got
		case <-time.After(10 * time.Second):
			t.Fatal("nothing was tried")
			return servers{}
		}
	}
}

func testServersListenOnOtherAddressesWhileOneIsTaken(t *testing.T) {
	p := freePort(t)
	other := occupy(t, p)
	m := &machine{}
	m.become(nil, "127.0.0.1", "127.0.0.2")
	s, fake, next := looking(t, m)
	s.Apply(t.Context(), full(port("web", "", model.IPv4, p, "10.244.1.5:80")))
	if got := next(); got != (servers{failing: 1}) {
		t.Errorf("servers are %+v, want one that fails", got)
	}
	expectCheck(t, "127.0.0.2", p, "200 1")
	other.Close()
	fake.Step(time.Second)
	if got := next(); got != (servers{listening: 1}) {
		t.Errorf("servers are %+v, want one that listens", got)
	}
	expectCheck(t, "127.0.0.1", p, "200 1")
}

func testServersGoOnWhileAddressesCannotBeListed(t *testing.T) {
	web, api := freePort(t), freePort(t)
	m, failure := &machine{}, errors.New("too many open files")
	s, fake, next := looking(t, m)
	var logs []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{}))

	// At the start there are no addresses of before.
	m.become(failure)
	s.Apply(ctx, full(port("web", "", model.IPv4, web, "10.244.1.5:80")))
	if got := next(); got != (servers{failing: 1}) {
		t.Errorf("servers are %+v, want one that fails", got)
	}
	m.become(nil, "127.0.0.1")
	fake.Step(time.Second)
	next()
	expectCheck(t, "127.0.0.1", web, "200 1")

	// Later there are.
	m.become(failure)
	s.Apply(ctx, changes(port("web", "", model.IPv4, web, "10.244.1.5:80", "10.244.1.6:80"), port("api", "", model.IPv4, api, "10.244.1.6:80")))
	if got := next(); got != (servers{listening: 2}) {
		t.Errorf("servers are %+v, want two that listen", got)
	}
	expectCheck(t, "127.0.0.1", web, "200 2")
	expectCheck(t, "127.0.0.1", api, "200 1")
	for _, wait := range []time.Duration{time.Second, 2 * time.Second} {
		fake.Step(wait)
		next()
		expectCheck(t, "127.0.0.1", web, "200 2")
	}
	if len(logs) != 2 {
		t.Errorf("logged %q, want one line for each time", logs)
	}
	m.become(nil, "127.0.0.2")
	fake.Step(4 * time.Second)
	next()
	expectCheck(t, "127.0.0.1", web, "closed")
	expectCheck(t, "127.0.0.2", web, "200 2")
}

func testServersListenOnAddressesThatComeLater(t *testing.T) {
	p := freePort(t)
	m := &machine{}
	m.become(nil, "127.0.0.1")
	s, fake, next := looking(t, m)
	s.Apply(t.Context(), full(port("web", "", model.IPv4, p, "10.244.1.5:80")))
	next()
	// A connection that is there notices nothing.
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	m.become(nil, "127.0.0.1", "127.0.0.2")
	expectCheck(t, "127.0.0.2", p, "closed")
	fake.Step(10 * time.Second)
	next()
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		expectCheck(t, host, p, "200 1")
	}
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("the connection of before got %v, %v", response, err)
	}
	m.become(nil, "127.0.0.2")
	fake.Step(10 * time.Second)
	next()
	expectCheck(t, "127.0.0.1", p, "closed")
	expectCheck(t, "127.0.0.2", p, "200 1")
}

func testTriesEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	taken := freePort(t)
	other := occupy(t, taken)
	fake := newFakeClock()
	s := newServices(health.ServicesOptions{CIDRs: []netip.Prefix{loopback4}, Clock: fake})
	s.Apply(ctx, full(port("web", "", model.IPv4, taken)))
	if !fake.HasWaiters() {
		t.Error("does not mean to try again")
	}
	cancel()
	await.True(t, "nothing is to be tried any more", func() bool { return !fake.HasWaiters() })
	other.Close()
	expectCheck(t, "127.0.0.1", taken, "closed")
}
