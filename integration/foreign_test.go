package integration

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
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

// foreignBench is a lab of which the datagrams that arrive are noted.
type foreignBench struct {
	*lab.Lab
	conn                *nft.Conn
	answers, constructs map[string]int
	refused             int

	// mu guards arrived: where a datagram arrived, by its text.
	mu      sync.Mutex
	arrived map[string]arrivedAt
}

type arrivedAt struct{ to, from netip.AddrPort }

// Where datagrams of this test go.
var (
	foreignEndpoints = []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:5353"), netip.MustParseAddrPort("10.244.1.6:5353")}
	foreignClusterIP = netip.MustParseAddrPort("10.96.0.10:53")
	foreignExternal  = netip.MustParseAddrPort("192.0.2.10:53")
	foreignNodePort  = netip.AddrPortFrom(lab.NodeAddrs.IPv4, 30053)
	foreignNode      = netip.AddrPortFrom(lab.NodeAddrs.IPv4, 5353)
)

func newForeignBench(t *testing.T) *foreignBench {
	t.Helper()
	b := &foreignBench{Lab: lab.ForTest(t), answers: map[string]int{}, constructs: map[string]int{}, arrived: map[string]arrivedAt{}}
	b.conn = lab.Conn(t, b.Node)
	pod, err := b.AddPod("web", foreignEndpoints[0].Addr(), foreignEndpoints[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range foreignEndpoints {
		b.note(t, pod, at, at)
	}
	// A socket of all addresses of the node: it does not say to which of them a datagram came.
	for _, port := range []uint16{53, 5353, 30053} {
		at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		b.note(t, b.Node, at, at)
	}
	c, err := compiler.New(compiler.Default())
	if err != nil {
		t.Fatal(err)
	}
	id := model.PortID{Namespace: "kube-system", Service: "dns", Family: model.IPv4, Protocol: model.UDP}
	port := &model.ServicePort{ID: id, ClusterIP: foreignClusterIP.Addr(), Port: 53, NodePort: 30053, LoadBalancerIPs: []netip.Addr{foreignExternal.Addr()}}
	for _, at := range foreignEndpoints {
		port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: at, Local: true})
	}
	c.Apply(&model.Changes{Full: true, Node: &model.Node{IPs: []netip.Addr{lab.NodeAddrs.IPv4}}, Ports: map[model.PortID]*model.ServicePort{id: port}})
	replace(t, b.conn, c.Tables())
	return b
}

// note notes what arrives at a socket.
func (b *foreignBench) note(t *testing.T, h *lab.Host, at, name netip.AddrPort) {
	t.Helper()
	conn := lab.ListenUDP(t, h, at)
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			b.mu.Lock()
			b.arrived[string(buffer[:n])] = arrivedAt{name, netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
			b.mu.Unlock()
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
	for i, flow := range []struct {
		host *lab.Host
		from netip.Addr
		to   netip.AddrPort
	}{
		{b.Client, lab.ClientAddrs.IPv4, foreignClusterIP}, {b.Outside, lab.OutsideAddrs.IPv4, foreignExternal},
		{b.Outside, lab.SecondOutsideAddrs.IPv4, foreignNodePort}, {b.Node, lab.NodeAddrs.IPv4, foreignClusterIP},
		{b.Client, lab.ClientAddrs.IPv4, foreignEndpoints[0]}, {b.Outside, lab.OutsideAddrs.IPv4, foreignNode},
	} {
		text := fmt.Sprintf("%d/%d", r.Seed, i)
		if err := b.send(t, e, flow.host, flow.from, flow.to, text); err != nil {
			t.Errorf("seed %d, %s to %s: %v\n%s", r.Seed, flow.from, flow.to, err, r)
		}
	}
}

// send compares what becomes of a datagram with what explain says.
func (b *foreignBench) send(t *testing.T, e *evaluator.Evaluator, host *lab.Host, from netip.Addr, to netip.AddrPort, text string) error {
	var conn *net.UDPConn
	dialErr := host.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: from.AsSlice()}, net.UDPAddrFromAddrPort(to))
		return err
	})
	source := netip.AddrPortFrom(from, 40000)
	if dialErr == nil {
		defer conn.Close()
		source = conn.LocalAddr().(*net.UDPAddr).AddrPort()
		source = netip.AddrPortFrom(source.Addr().Unmap(), source.Port())
	}
	fates, err := e.Fates(evaluator.Packet{Source: source, Destination: to, Protocol: unix.IPPROTO_UDP, Local: host == b.Node})
	if err != nil {
		return err
	}
	may := map[string]bool{}
	for i := range fates {
		may[b.expected(&fates[i], from)] = true
	}
	unknown := may[notKnown]
	delete(may, notKnown)
	became := "dropped"
	if dialErr == nil {
		became = b.became(conn, host, from, text, may, unknown)
	}
	switch {
	case unknown:
		b.answers[notKnown]++
		return nil
	case !may[became]:
		return fmt.Errorf("the datagram was %s; explain says\n%s", became, fates)
	case depends(fates) && len(may) > 1:
		b.answers[notKnown]++
	default:
		word, _, _ := strings.Cut(became, " ")
		b.answers[word]++
	}
	return nil
}

func depends(fates evaluator.Fates) bool {
	return slices.ContainsFunc(fates, func(f evaluator.Fate) bool { return len(f.Depends) > 0 })
}

// expected is what is to be seen of a fate. Where nobody listens, nothing is.
func (b *foreignBench) expected(f *evaluator.Fate, from netip.Addr) string {
	to := f.Destination
	switch f.Result {
	case evaluator.Undecided:
		return notKnown
	case evaluator.Refused:
		if f.Path.EndsInKernel() {
			return "dropped" // a socket is not told of an unreachable host
		}
		return "refused"
	case evaluator.Dropped:
		return "dropped"
	}
	if f.Local {
		if !slices.Contains([]uint16{53, 5353, 30053}, to.Port()) {
			return "refused"
		}
		to = netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())
	} else if !slices.Contains(foreignEndpoints, to) {
		if b.HostOf(to.Addr()) != nil {
			return "refused" // nobody listens
		}
		return "dropped" // no host has the address
	}
	return describeArrival(to, f.Masqueraded && from != lab.NodeAddrs.IPv4)
}

func describeArrival(to netip.AddrPort, masqueraded bool) string {
	return fmt.Sprintf("delivered to %s, masqueraded: %v", to, masqueraded)
}

// became sends a datagram and returns what is seen of it. It waits as long as something that may be seen is not.
func (b *foreignBench) became(conn *net.UDPConn, host *lab.Host, from netip.Addr, text string, may map[string]bool, unknown bool) string {
	_, _ = conn.Write([]byte(text)) // a rule of hook output refuses
	patience := await.Patience
	if unknown || may["dropped"] || len(may) == 0 {
		patience = 50 * time.Millisecond
	}
	buffer := make([]byte, 1)
	for end := time.Now().Add(patience); ; {
		if a, is := b.at(text); is {
			return describeArrival(a.to, a.from.Addr() != from && from != lab.NodeAddrs.IPv4)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := conn.Read(buffer); errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) {
			return "refused"
		}
		if time.Now().After(end) {
			return "dropped"
		}
	}
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
		resetLegacy(t, b.Node, "iptables-legacy-restore")
	}
	if err := b.Node.Do(func() error { return r.Routing(false) }); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		t.Logf("seed %d: %v", r.Seed, err)
	}
}
