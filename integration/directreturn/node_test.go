package directreturn

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// bird is a running routing daemon.
type bird struct {
	process *lab.Process
	socket  string
}

// birdCommon is in the configuration of the router and of nodes. BFD notices after three seconds that a node is dead: one
// second was too little for living ones on a machine with a load of 25.
const birdCommon = `log stderr { warning, error, fatal, bug };
protocol device { }
protocol bfd { interface "*" { interval 200 ms; multiplier 15; }; }
`

func startBird(t testing.TB, h *lab.Host, config string) *bird {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "bird.conf")
	must(t, os.WriteFile(path, []byte(birdCommon+config), 0o600))
	b := &bird{socket: filepath.Join(dir, "bird.ctl")}
	// On a busy machine it must not look dead.
	b.process = lab.StartCommand(t, h, exec.Command("nice", "-n", "-15", "bird", "-f", "-c", path, "-s", b.socket, "-P", filepath.Join(dir, "bird.pid")))
	return b
}

// do gives the daemon a command.
func (b *bird) do(t testing.TB, command ...string) {
	t.Helper()
	if out, err := exec.Command("birdc", append([]string{"-s", b.socket}, command...)...).CombinedOutput(); err != nil {
		t.Fatalf("birdc %v: %v\n%s", command, err, out)
	}
}

func (f *fabric) startRouter(t testing.TB) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintln(&b, "router id 10.0.0.254;")
	for _, family := range families {
		channel := strings.ToLower(family.String())
		fmt.Fprintf(&b, "protocol kernel { %s { import none; export all; }; merge paths on; }\n", channel)
		for n := 1; n <= nodes; n++ {
			fmt.Fprintf(&b, "protocol bgp { local %s as 64512; neighbor %s as 64513; passive on; error wait time 1, 2; bfd on; %s { import all; export none; }; }\n",
				f.routerAddr(family, n), f.nodeAddr(family, n), channel)
		}
	}
	f.routerBird = startBird(t, f.router, b.String())
}

// announce has a node announce the addresses of Services to the router.
func (f *fabric) announce(t testing.TB, to ...int) {
	t.Helper()
	for _, number := range to {
		var b strings.Builder
		fmt.Fprintf(&b, "router id 10.0.0.%d;\n", number)
		for _, family := range families {
			channel := strings.ToLower(family.String())
			fmt.Fprintf(&b, "protocol static services_%s { %s;", channel, channel)
			for _, s := range services {
				fmt.Fprintf(&b, " route %s blackhole;", netip.PrefixFrom(s.addr(family), s.addr(family).BitLen()))
			}
			fmt.Fprintf(&b, " }\nprotocol bgp { local %s as 64513; neighbor %s as 64512; connect delay time 1; connect retry time 1; error wait time 1, 2; bfd on; "+
				"%s { import none; export all; next hop self; }; }\n", f.nodeAddr(family, number), f.routerAddr(family, number), channel)
		}
		n := f.nodes[number]
		n.bird = startBird(t, n.Host, b.String())
	}
}

// withdraw has a node take its announcements back, or announce again.
func (f *fabric) withdraw(t testing.TB, number int, action string) {
	t.Helper()
	for _, family := range families {
		f.nodes[number].bird.do(t, action, "services_"+strings.ToLower(family.String()))
	}
}

// die ends what runs on a node at once, and takes down its link.
func (n *node) die(t testing.TB) {
	t.Helper()
	n.dead = true
	must(t, n.Routes().LinkSetDown(link(t, n.Host, "eth0")))
	for _, p := range []*lab.Process{n.bird.process, n.proxy} {
		must(t, p.Cmd.Process.Kill())
		_ = p.Wait() // it was killed
	}
}

// startProxy starts kube-proxy, and waits until it has programmed the node.
func (n *node) startProxy(t testing.TB) {
	t.Helper()
	n.proxy = lab.Start(t, n.Host, "kube-proxy", "--hostname-override", n.Name, "--manifests", n.manifests, "--cluster-cidr", "10.244.0.0/16,fd00:244::/32",
		"--feature-gates", "NFTProxyDirectReturn=true"+n.gates, "-v", "1")
	lab.AwaitHealthy(t, n.Host)
}

// service is a Service of type LoadBalancer, for TCP and UDP, in both families. All have the same pods.
type service struct {
	name   string
	number int
	direct bool
}

var (
	// direct has direct return, and masqueraded is as Services are without.
	direct      = service{"direct", 1, true}
	masqueraded = service{"masqueraded", 2, false}
	services    = []service{direct, masqueraded}
)

func (s service) addr(f model.Family) netip.Addr {
	return addr(f, fmt.Sprintf("203.0.113.%d", s.number), fmt.Sprintf("2001:db8:113::%d", s.number))
}

// state is the state of both Services that a node knows.
type state struct {
	// ready and terminating are the numbers of the pods that are endpoints.
	ready, terminating []int
	// asks says whether the Service asks for direct return, and ports are its ports.
	asks  bool
	ports []int
}

// serving is the usual state.
func serving(pods ...int) state { return state{ready: pods, asks: true, ports: []int{80}} }

func (s state) manifests() string {
	var b strings.Builder
	for _, svc := range services {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata:
  name: %[1]s
  namespace: shop
  annotations: {nftproxy.io/direct-return: "%[3]v", ports: "%[4]d"}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.%[2]d
  clusterIPs: [10.96.0.%[2]d, "fd00:96::%[2]d"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  allocateLoadBalancerNodePorts: false
  ports:
`, svc.name, svc.number, svc.direct && s.asks, len(s.ports))
		ports := ""
		for _, port := range s.ports {
			for _, protocol := range []string{"TCP", "UDP"} {
				name := fmt.Sprintf("p%d-%s", port, strings.ToLower(protocol))
				fmt.Fprintf(&b, "  - {name: %s, port: %d, protocol: %s, targetPort: 8080}\n", name, port, protocol)
				ports += fmt.Sprintf("- {name: %s, port: 8080, protocol: %s}\n", name, protocol)
			}
		}
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: %s}, {ip: %q}]}}\n", svc.addr(model.IPv4), svc.addr(model.IPv6))
		for _, family := range families {
			fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s-%[2]s
  namespace: shop
  labels: {kubernetes.io/service-name: %[1]s}
addressType: %[3]s
ports:
%[4]sendpoints:
`, svc.name, strings.ToLower(family.String()), family, ports)
			for pod := 2; pod <= nodes; pod++ {
				ready := slices.Contains(s.ready, pod)
				if ready || slices.Contains(s.terminating, pod) {
					fmt.Fprintf(&b, "- {addresses: [%q], nodeName: node-%d, conditions: {ready: %v, serving: true, terminating: %v}}\n",
						podAddr(family, pod), pod, ready, !ready)
				}
			}
		}
	}
	for n := 1; n <= nodes; n++ {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-%d}\nstatus: {addresses: [{type: InternalIP, address: 172.31.0.%d}]}\n", n, n)
	}
	return b.String()
}

// start starts kube-proxy on nodes with the same state.
func (f *fabric) start(t testing.TB, s state, on ...int) {
	t.Helper()
	for _, n := range on {
		f.nodes[n].write(t, s)
		f.nodes[n].startProxy(t)
	}
}

// tell tells running nodes a state that is not the one they have, and waits until it is in their rules.
func (f *fabric) tell(t testing.TB, s state, to ...int) {
	t.Helper()
	before := map[*node]uint32{}
	for _, number := range to {
		n := f.nodes[number]
		before[n] = n.generation(t)
		n.write(t, s)
	}
	for n, generation := range before {
		await.Until(t, n.Name+" has the new state", func() error {
			if n.generation(t) == generation {
				return errors.New("nothing was committed")
			}
			return nil
		})
	}
}

func (n *node) write(t testing.TB, s state) {
	t.Helper()
	staged := filepath.Join(n.manifests, ".shop.yaml")
	must(t, os.WriteFile(staged, []byte(s.manifests()), 0o600))
	must(t, os.Rename(staged, filepath.Join(n.manifests, "shop.yaml")))
}

func (n *node) generation(t testing.TB) uint32 {
	t.Helper()
	g, err := n.rules.Generation(t.Context())
	must(t, err)
	return g
}

// expectEntriesWithPods fails unless node 2, which has an endpoint of the Service with direct return, has entries in its
// conntrack, and node 1, which has none, has none.
func (f *fabric) expectEntriesWithPods(t testing.TB) {
	t.Helper()
	if n := f.nodes[1].entries(t, direct); n != 0 {
		t.Errorf("node 1, which has no pod, has %d conntrack entries of the Service", n)
	}
	if f.nodes[2].entries(t, direct) == 0 {
		t.Error("node 2, which has a pod, has no conntrack entries of the Service")
	}
}

// entries counts the entries of a node's conntrack that are of a Service.
func (n *node) entries(t testing.TB, s service) (entries int) {
	t.Helper()
	must(t, n.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/nf_conntrack") // /proc/net is that of the process's first thread
		for _, family := range families {
			entries += strings.Count(string(b), "dst="+s.addr(family).StringExpanded()+" ")
		}
		return err
	}))
	return entries
}
