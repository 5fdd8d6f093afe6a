package integration

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/foreign"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// foreignRulesets is how many rulesets of other programs are tried, and foreignSeed the first one's.
var (
	foreignRulesets = flag.Int("foreign-rulesets", 40, "how many random rulesets of other programs explain is compared with packets in")
	foreignSeed     = flag.Uint64("foreign-seed", 1, "number of the first of the random rulesets of other programs")
)

// No definite answer of explain is wrong, whatever other programs' rules there are, and at most one in five is "not known".
func TestForeignRules(t *testing.T) {
	t.Parallel()
	b := newForeignBench(t)
	for seed := *foreignSeed; seed < *foreignSeed+uint64(*foreignRulesets); seed++ {
		b.use(int(seed % 2))
		b.try(t, foreign.Generate(seed))
	}
	t.Logf("%d rulesets, %d refused by nft or iptables; answers: %v; constructs: %v", *foreignRulesets, b.refused, b.answers, b.constructs)
	all := 0
	for _, n := range b.answers {
		all += n
	}
	if unknown := b.answers[notKnown]; unknown*5 > all {
		t.Errorf("%d of %d answers are not known", unknown, all)
	}
	for _, kind := range []string{notKnown, "delivered", "dropped", "refused"} {
		if b.answers[kind] == 0 {
			t.Errorf("no answer is %s", kind)
		}
	}
	if b.refused*10 > *foreignRulesets {
		t.Errorf("%d rulesets were refused", b.refused)
	}
}

const notKnown = "not known"

// foreignBench are two labs, of which one has a bridge. What arrives in them is noted.
type foreignBench struct {
	*lab.Lab
	conn                *nft.Conn
	labs                []*lab.Lab
	conns               []*nft.Conn
	answers, constructs map[string]int
	refused             int

	// mu guards arrived: where a datagram arrived, by its text.
	mu      sync.Mutex
	arrived map[string]arrivedAt
}

type arrivedAt struct{ to, from netip.AddrPort }

// Where packets of this test go, in the generator's addresses.
var (
	foreignEndpoints = []lab.Addrs{foreignAddrs("10.244.1.5", "fd00:10:244:1::5"), foreignAddrs("10.244.1.6", "fd00:10:244:1::6")}
	foreignClusterIP = foreignAddrs("10.96.0.10", "fd00:10:96::10")
	foreignExternal  = foreignAddrs("192.0.2.10", "2001:db8:2::10")
)

func foreignAddrs(ipv4, ipv6 string) lab.Addrs {
	return lab.Addrs{IPv4: netip.MustParseAddr(ipv4), IPv6: netip.MustParseAddr(ipv6)}
}

// The ports of the Service, of its endpoints, and of the node.
const foreignPort, foreignTarget, foreignNodePort = 53, 5353, 30053

func newForeignBench(t *testing.T) *foreignBench {
	t.Helper()
	b := &foreignBench{answers: map[string]int{}, constructs: map[string]int{}, arrived: map[string]arrivedAt{}}
	for _, bridge := range []string{"", "cni0"} {
		l := lab.ForTestWithBridge(t, bridge)
		b.labs, b.conns = append(b.labs, l), append(b.conns, lab.Conn(t, l.Node))
		b.use(len(b.labs) - 1)
		b.serve(t)
	}
	b.bridgeToSecond(t)
	return b
}

// bridgeToSecond has the client behind the bridge send to the second endpoint's Ethernet address, as pods of most network
// plugins with a bridge do. All other packets of pods go to the node's.
func (b *foreignBench) bridgeToSecond(t *testing.T) {
	t.Helper()
	link, err := b.Client.Routes().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{foreignEndpoints[1].IPv4, foreignEndpoints[1].IPv6} {
		to := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
		if err := b.Client.Routes().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}); err != nil {
			t.Fatal(err)
		}
	}
}

// use has what follows happen in one of the labs.
func (b *foreignBench) use(i int) { b.Lab, b.conn = b.labs[i], b.conns[i] }

// serve makes the endpoints and the Service, for both families and protocols.
func (b *foreignBench) serve(t *testing.T) {
	t.Helper()
	c, err := compiler.New(compiler.Default())
	if err != nil {
		t.Fatal(err)
	}
	changes := &model.Changes{Full: true, Node: &model.Node{IPs: []netip.Addr{lab.NodeAddrs.IPv4, lab.NodeAddrs.IPv6}}, Ports: map[model.PortID]*model.ServicePort{}}
	var pods []netip.Addr
	for _, e := range foreignEndpoints {
		pods = append(pods, e.IPv4, e.IPv6)
	}
	pod, err := b.AddPod("web", pods...)
	if err != nil {
		t.Fatal(err)
	}
	for family, of := range map[model.Family]func(lab.Addrs) netip.Addr{
		model.IPv4: func(a lab.Addrs) netip.Addr { return a.IPv4 }, model.IPv6: func(a lab.Addrs) netip.Addr { return a.IPv6 },
	} {
		for protocol, network := range map[model.Protocol]string{model.UDP: "udp", model.TCP: "tcp"} {
			id := model.PortID{Namespace: "kube-system", Service: "dns", Family: family, Protocol: protocol}
			port := &model.ServicePort{
				ID: id, ClusterIP: of(foreignClusterIP), Port: foreignPort, NodePort: foreignNodePort,
				LoadBalancerIPs: []netip.Addr{of(foreignExternal)},
			}
			for _, e := range foreignEndpoints {
				at := netip.AddrPortFrom(of(e), foreignTarget)
				port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: at, Local: true})
				b.note(t, network, pod, at)
			}
			changes.Ports[id] = port
			// A socket of all addresses of the node: it does not say to which of them a packet came.
			for _, number := range []uint16{foreignPort, foreignTarget, foreignNodePort} {
				b.note(t, network, b.Node, netip.AddrPortFrom(anyAddr(of(lab.NodeAddrs)), number))
			}
		}
	}
	c.Apply(changes)
	replace(t, b.conn, c.Tables())
}

func anyAddr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// note notes what arrives at a socket. A connection has its text in the first packet (TCP Fast Open), so what becomes of
// later packets does not count.
func (b *foreignBench) note(t *testing.T, network string, h *lab.Host, at netip.AddrPort) {
	t.Helper()
	arrived := func(text []byte, from netip.AddrPort) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.arrived[string(text)] = arrivedAt{at, netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
	}
	buffer := make([]byte, 1500)
	only := network + map[bool]string{true: "4", false: "6"}[at.Addr().Is4()]
	if network == "udp" {
		var conn *net.UDPConn
		err := h.Do(func() (err error) { conn, err = net.ListenUDP(only, net.UDPAddrFromAddrPort(at)); return err })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				arrived(buffer[:n], from)
			}
		}()
		return
	}
	var listener *net.TCPListener
	err := h.Do(func() (err error) {
		if err = sendFirstTexts(); err == nil {
			listener, err = net.ListenTCP(only, net.TCPAddrFromAddrPort(at))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
			if n, err := conn.Read(buffer); err == nil {
				arrived(buffer[:n], conn.RemoteAddr().(*net.TCPAddr).AddrPort())
			}
			conn.Close()
		}
	}()
}

func (b *foreignBench) at(text string) (arrivedAt, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, is := b.arrived[text]
	return a, is
}

// try loads a ruleset, and sends some datagrams.
func (b *foreignBench) try(t *testing.T, r *foreign.Ruleset) {
	t.Helper()
	if !b.load(t, r) {
		b.refused++
		return
	}
	defer b.unload(t, r)
	if err := b.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
	for _, name := range r.Constructs {
		b.constructs[name]++
	}
	var s *ruledump.Snapshot
	err := b.Node.Do(func() (err error) {
		if s, err = ruledump.FromKernel(t.Context(), b.conn, "", false); err == nil {
			s.AddOthers(t.Context(), b.conn, false)
		}
		return err
	})
	if err != nil {
		t.Fatalf("seed %d: %v", r.Seed, err)
	}
	e := evaluator.New(s.Walked())
	of := func(a lab.Addrs) netip.Addr {
		if r.IPv6 {
			return a.IPv6
		}
		return a.IPv4
	}
	for i, flow := range []struct {
		host *lab.Host
		from lab.Addrs
		to   lab.Addrs
		port uint16
	}{
		{b.Client, lab.ClientAddrs, foreignClusterIP, foreignPort}, {b.Outside, lab.OutsideAddrs, foreignExternal, foreignPort},
		{b.Outside, lab.SecondOutsideAddrs, lab.NodeAddrs, foreignNodePort}, {b.Node, lab.NodeAddrs, foreignClusterIP, foreignPort},
		{b.Client, lab.ClientAddrs, foreignEndpoints[0], foreignTarget}, {b.Client, lab.ClientAddrs, foreignEndpoints[1], foreignTarget},
		{b.Outside, lab.OutsideAddrs, lab.NodeAddrs, foreignTarget},
	} {
		from, to := of(flow.from), netip.AddrPortFrom(of(flow.to), flow.port)
		if err := b.send(e, r, flow.host, from, to, fmt.Sprintf("%d/%d", r.Seed, i)); err != nil {
			t.Errorf("seed %d, %s %s to %s: %v\n%s", r.Seed, networkOf(r), from, to, err, r)
		}
	}
}

func networkOf(r *foreign.Ruleset) string {
	if r.TCP {
		return "tcp"
	}
	return "udp"
}

// send compares what becomes of a packet with what explain says.
func (b *foreignBench) send(e *evaluator.Evaluator, r *foreign.Ruleset, host *lab.Host, from netip.Addr, to netip.AddrPort, text string) error {
	network := networkOf(r)
	conn, dialErr := dialFrom(host, network, from, to)
	source := netip.AddrPortFrom(from, 40000)
	if dialErr == nil {
		defer conn.Close()
		source = netip.MustParseAddrPort(conn.LocalAddr().String())
	}
	packet := evaluator.Packet{Source: source, Destination: to, Protocol: unix.IPPROTO_UDP, Local: host == b.Node}
	if r.TCP {
		packet.Protocol = unix.IPPROTO_TCP
	}
	var fates evaluator.Fates
	err := b.Node.Do(func() (err error) { fates, err = e.Fates(packet); return err }) // explain asks the kernel for routes
	if err != nil {
		return err
	}
	may := map[string]bool{}
	for i := range fates {
		may[b.expected(&fates[i], network, from)] = true
	}
	unknown := may[notKnown]
	delete(may, notKnown)
	if may["refused"] && r.Untracks() {
		may["dropped"] = true // an ICMP error that conntrack does not see is not translated back, so the socket is not told
	}
	became := "dropped"
	if dialErr == nil {
		became = b.became(conn, from, text, may, unknown)
	}
	switch {
	case unknown:
		b.answers[notKnown]++
		return nil
	case !may[became]:
		return fmt.Errorf("the packet was %s; explain says\n%s", became, fates)
	case depends(fates) && len(may) > 1:
		b.answers[notKnown]++
	default:
		word, _, _ := strings.Cut(became, " ")
		b.answers[word]++
	}
	return nil
}

// dialFrom returns a connection whose first packet is sent with the first text.
func dialFrom(host *lab.Host, network string, from netip.Addr, to netip.AddrPort) (conn net.Conn, err error) {
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}, Timeout: time.Second}
	if network == "tcp" {
		dialer.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			control := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1) })
			return errors.Join(err, control)
		}
	}
	err = host.Do(func() (err error) {
		if err = sendFirstTexts(); err == nil {
			conn, err = dialer.Dial(network, to.String())
		}
		return err
	})
	return conn, err
}

func depends(fates evaluator.Fates) bool {
	return slices.ContainsFunc(fates, func(f evaluator.Fate) bool { return len(f.Depends) > 0 })
}

// expected is what is to be seen of a fate. Where nobody listens, nothing is.
func (b *foreignBench) expected(f *evaluator.Fate, network string, from netip.Addr) string {
	to := f.Destination
	switch f.Result {
	case evaluator.Undecided:
		return notKnown
	case evaluator.Refused:
		if f.Path.EndsInKernel() && network == "udp" {
			return "dropped" // a socket is not told of an unreachable host
		}
		return "refused"
	case evaluator.Dropped:
		return "dropped"
	}
	if f.Local {
		if !slices.Contains([]uint16{foreignPort, foreignTarget, foreignNodePort}, to.Port()) {
			return "refused"
		}
		to = netip.AddrPortFrom(anyAddr(to.Addr()), to.Port())
	} else if !slices.ContainsFunc(foreignEndpoints, func(e lab.Addrs) bool { return to == netip.AddrPortFrom(e.Like(to.Addr()), foreignTarget) }) {
		if b.HostOf(to.Addr()) != nil {
			return "refused" // nobody listens
		}
		return "dropped" // no host has the address
	}
	return describeArrival(to, f.Masqueraded && from != lab.NodeAddrs.Like(from))
}

func describeArrival(to netip.AddrPort, masqueraded bool) string {
	return fmt.Sprintf("delivered to %s, masqueraded: %v", to, masqueraded)
}

// became sends a datagram and returns what is seen of it. It waits as long as something that may be seen is not.
func (b *foreignBench) became(conn net.Conn, from netip.Addr, text string, may map[string]bool, unknown bool) string {
	// A rule of hook output makes it fail.
	if _, err := conn.Write([]byte(text)); errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	patience := await.Patience
	if unknown || may["dropped"] || len(may) == 0 {
		patience = 50 * time.Millisecond
	}
	buffer := make([]byte, 1)
	for end := time.Now().Add(patience); ; {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		_, err := conn.Read(buffer)
		if a, is := b.at(text); is { // before the error: a connection that ends has arrived
			return describeArrival(a.to, a.from.Addr() != from && from != lab.NodeAddrs.Like(from))
		}
		if isRefusal(err) {
			return "refused"
		}
		if time.Now().After(end) {
			return "dropped"
		}
	}
}

// sendFirstTexts lets this network namespace send and take texts in the first packets of TCP, without cookies.
func sendFirstTexts() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("1543"), 0o644) // 0x607
}

// isRefusal reports whether an error is the answer to a packet that was refused.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EACCES}, func(errno error) bool { return errors.Is(err, errno) })
}

// load loads a ruleset. It reports whether the kernel takes it.
func (b *foreignBench) load(t *testing.T, r *foreign.Ruleset) bool {
	t.Helper()
	loaded := true
	for _, part := range r.Parts {
		load := exec.Command(part.Program, part.Args...)
		load.Stdin = strings.NewReader(part.Text)
		if p := lab.StartCommand(t, b.Node, load); p.Wait() != nil {
			t.Logf("seed %d: %s: %s\n%s", r.Seed, part.Program, p.Output(), part.Text)
			loaded = false
		}
	}
	if !loaded {
		b.unload(t, r)
		return false
	}
	err := b.Node.Do(func() error { return r.Routing(true) })
	if err != nil {
		t.Fatalf("seed %d: %v", r.Seed, err)
	}
	return true
}

// unload removes what load added.
func (b *foreignBench) unload(t *testing.T, r *foreign.Ruleset) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(r.Tables)) {
		lab.Nft(t, b.Node, "table "+name+" {\n}\ndelete table "+name+"\n", "-f", "-")
	}
	if r.Legacy {
		program := "iptables-legacy-restore"
		if r.IPv6 {
			program = "ip6tables-legacy-restore"
		}
		resetLegacy(t, b.Node, program)
	}
	if err := b.Node.Do(func() error { return r.Routing(false) }); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		t.Logf("seed %d: %v", r.Seed, err)
	}
}
