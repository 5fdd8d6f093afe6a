package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/vishvananda/netlink"
)

// virtualServer is one that kube-proxy's mode ipvs makes of testdata/manifests.yaml.
type virtualServer struct {
	protocol string
	at       netip.AddrPort
	// timeout is that of session affinity in seconds, 0 for none.
	timeout int
	servers []string
}

// modeIPVS is the state that kube-proxy's mode ipvs makes of testdata/manifests.yaml in one family.
type modeIPVS struct {
	family  string // inet, inet6
	servers []virtualServer
	// addresses are those on kube-ipvs0.
	addresses []netip.Addr
	// sets has the elements of each set, by the name that it has for IPv4 without "KUBE-".
	sets map[string][]string
}

// setTypes are the types of kube-proxy's sets that the rules name. Each exists, also without elements.
var setTypes = map[string]string{
	"LOOP-BACK": "hash:ip,port,ip", "CLUSTER-IP": "hash:ip,port", "EXTERNAL-IP": "hash:ip,port", "LOAD-BALANCER": "hash:ip,port",
	"LOAD-BALANCER-LOCAL": "hash:ip,port", "LOAD-BALANCER-FW": "hash:ip,port", "LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net",
	"NODE-PORT-TCP": "bitmap:port", "NODE-PORT-LOCAL-TCP": "bitmap:port", "HEALTH-CHECK-NODE-PORT": "bitmap:port", "IPVS-IPS": "hash:ip",
}

// modesIPVS returns what kube-proxy makes of the manifests, by its source and its documentation.
func modesIPVS() []*modeIPVS {
	v4 := &modeIPVS{family: "inet", sets: map[string][]string{}}
	v6 := &modeIPVS{family: "inet6", sets: map[string][]string{}}
	for _, m := range []*modeIPVS{v4, v6} {
		pick := func(ipv4, ipv6 string) string {
			if m == v4 {
				return ipv4
			}
			return ipv6
		}
		pods := func(texts ...string) (servers []string) {
			for _, p := range texts {
				node, host, _ := strings.Cut(p, ".")
				servers = append(servers, pick("10.244."+p, "fd00:10:244:"+node+"::"+host))
			}
			return servers
		}
		all, local := pods("1.5", "1.6", "2.6"), pods("1.5", "2.6")
		cluster := func(n string) string { return pick("10.96.0."+n, "fd00:10:96::"+n) }
		balancer := func(n string) string { return pick("192.0.2."+n, "2001:db8:192::"+n) }
		m.service("CLUSTER-IP", "tcp", cluster("10"), 80, 0, 8080, all)
		m.service("LOAD-BALANCER", "tcp", balancer("10"), 80, 0, 8080, all)
		m.element("LOAD-BALANCER-FW", balancer("10")+",tcp:80")
		m.element("LOAD-BALANCER-SOURCE-CIDR", balancer("10")+",tcp:80,"+pick("198.51.100.7/32", "2001:db8:51::7/128"))
		m.nodePort(30080, 0, 8080, all)
		m.service("CLUSTER-IP", "tcp", cluster("20"), 80, 0, 8080, local)
		m.service("LOAD-BALANCER", "tcp", balancer("20"), 80, 0, 8080, pods("1.5"))
		m.element("LOAD-BALANCER-LOCAL", balancer("20")+",tcp:80")
		m.nodePort(30020, 0, 8080, pods("1.5"))
		m.element("NODE-PORT-LOCAL-TCP", "30020")
		m.element("HEALTH-CHECK-NODE-PORT", "32020")
		for _, protocol := range []string{"udp", "tcp"} {
			m.service("CLUSTER-IP", protocol, cluster("30"), 53, 0, 5353, pods("1.6", "2.6"))
			m.service("EXTERNAL-IP", protocol, pick("203.0.113.30", "2001:db8:203::30"), 53, 0, 5353, pods("1.6", "2.6"))
		}
		m.service("CLUSTER-IP", "tcp", cluster("40"), 80, 600, 8080, all)
		m.nodePort(30040, 600, 8080, all)
		m.service("CLUSTER-IP", "tcp", cluster("50"), 80, 0, 8080, pods("1.6"))
		m.service("CLUSTER-IP", "tcp", cluster("60"), 80, 0, 8080, nil)
		m.nodePort(30060, 0, 8080, nil)
		m.service("CLUSTER-IP", "tcp", cluster("70"), 80, 0, 8080, pods("2.6"))
		m.service("LOAD-BALANCER", "tcp", balancer("70"), 80, 0, 8080, nil)
		m.element("LOAD-BALANCER-LOCAL", balancer("70")+",tcp:80")
		m.nodePort(30070, 0, 8080, nil)
		m.element("NODE-PORT-LOCAL-TCP", "30070")
		for _, own := range pods("1.5", "1.6") {
			for _, port := range []string{"tcp:8080", "tcp:5353", "udp:5353"} {
				m.element("LOOP-BACK", own+","+port+","+own)
			}
		}
	}
	return []*modeIPVS{v4, v6}
}

func (m *modeIPVS) element(set, element string) { m.sets[set] = append(m.sets[set], element) }

// serve adds a virtual server.
func (m *modeIPVS) serve(protocol string, at netip.AddrPort, timeout int, to uint16, servers []string) {
	v := virtualServer{protocol: protocol, at: at, timeout: timeout}
	for _, s := range servers {
		v.servers = append(v.servers, netip.AddrPortFrom(netip.MustParseAddr(s), to).String())
	}
	m.servers = append(m.servers, v)
}

// service adds a virtual server at an address that kube-ipvs0 gets.
func (m *modeIPVS) service(set, protocol, addr string, port uint16, timeout int, to uint16, servers []string) {
	a := netip.MustParseAddr(addr)
	m.serve(protocol, netip.AddrPortFrom(a, port), timeout, to, servers)
	m.element(set, fmt.Sprintf("%s,%s:%d", addr, protocol, port))
	if len(m.addresses) == 0 || m.addresses[len(m.addresses)-1] != a {
		m.addresses = append(m.addresses, a)
		m.element("IPVS-IPS", addr)
	}
}

func (m *modeIPVS) nodePort(port uint16, timeout int, to uint16, servers []string) {
	m.serve("tcp", netip.AddrPortFrom(lab.NodeAddrs.Like(m.addresses[0]), port), timeout, to, servers)
	m.element("NODE-PORT-TCP", fmt.Sprint(port))
}

// setName returns the name of a set, which kube-proxy cuts to the kernel's limit.
func (m *modeIPVS) setName(name string) string {
	if m.family == "inet" {
		return "KUBE-" + name
	}
	name = "KUBE-6-" + name
	return name[:min(len(name), 31)]
}

// leaveIPVS makes what kube-proxy's mode ipvs leaves, with the programs of a variant of iptables. What is there already stays.
func leaveIPVS(t *testing.T, h *lab.Host, variant string) {
	t.Helper()
	if err := h.Do(func() error {
		for name, value := range map[string]string{"vs/conntrack": "1", "vs/expire_nodest_conn": "1", "vs/expire_quiescent_template": "1"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
		device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "kube-ipvs0", Flags: 0, MTU: 1500}}
		if err := netlink.LinkAdd(device); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		link, err := netlink.LinkByName("kube-ipvs0")
		if err != nil {
			return err
		}
		for _, m := range modesIPVS() {
			for _, a := range m.addresses {
				err := netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice()), Scope: 0})
				if err != nil && !errors.Is(err, fs.ErrExist) {
					return fmt.Errorf("%s: %w", a, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, m := range modesIPVS() {
		sets, rules := m.script(t)
		runIn(t, h, sets, "ipset", "-exist", "restore")
		commands := commandsOf(variant)[map[string]string{"inet": "ip", "inet6": "ip6"}[m.family]]
		runIn(t, h, rules, commands.restore, "--noflush")
		virtualServers(t, h, m.servers)
	}
}

// virtualServers makes those that are not there, and sets the weights of the others, as kube-proxy does when it starts.
func virtualServers(t *testing.T, h *lab.Host, all []virtualServer) {
	t.Helper()
	have := runIn(t, h, "", "ipvsadm", "--save", "--numeric")
	var rules strings.Builder
	for _, v := range all {
		service := map[string]string{"tcp": "-t ", "udp": "-u "}[v.protocol] + v.at.String()
		command := "-e"
		if !strings.Contains(have, "-A "+service+" ") {
			command = "-a"
			fmt.Fprintf(&rules, "-A %s -s rr", service)
			if v.timeout > 0 {
				fmt.Fprintf(&rules, " -p %d", v.timeout)
			}
			rules.WriteString("\n")
		}
		for _, s := range v.servers {
			fmt.Fprintf(&rules, "%s %s -r %s -m -w 1\n", command, service, s)
		}
	}
	runIn(t, h, rules.String(), "ipvsadm", "--restore")
}

// script returns what ipset and iptables-restore read.
func (m *modeIPVS) script(t *testing.T) (sets, rules string) {
	t.Helper()
	for name, typ := range setTypes {
		options := "family " + m.family
		if typ == "bitmap:port" {
			options = "range 0-65535"
		}
		sets += fmt.Sprintf("create %s %s %s\n", m.setName(name), typ, options)
		for _, e := range m.sets[name] {
			sets += fmt.Sprintf("add %s %s\n", m.setName(name), e)
		}
	}
	template, err := os.ReadFile("testdata/ipvs/rules.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	replacements := []string{"LOOPBACK", "127.0.0.0/8", "CLUSTER-CIDR", "10.244.0.0/16"}
	if m.family == "inet6" {
		replacements = []string{"LOOPBACK", "::1/128", "CLUSTER-CIDR", "fd00:10:244::/48"}
	}
	for name := range setTypes {
		replacements = append(replacements, " SET-"+name+" ", " "+m.setName(name)+" ")
	}
	return sets, strings.NewReplacer(replacements...).Replace(string(template))
}

// requireIPVS skips the test where the kernel has no IPVS. make test-kernels runs it where there is one.
func requireIPVS(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS, or has not loaded it; make test-kernels has one that does")
	}
}

// ofOthersIPVS are rules beside kube-proxy's.
const ofOthersIPVS = `*filter
:MINE - [0:0]
-A INPUT -m set --match-set MINE src -j MINE
-A MINE -m comment --comment kube-services -j ACCEPT
COMMIT
`

// leaveOthersIPVS makes virtual servers, a device, sets and rules of other programs.
func leaveOthersIPVS(t *testing.T, h *lab.Host, variant string) {
	t.Helper()
	if err := h.Do(func() error {
		device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "mine0"}}
		if err := netlink.LinkAdd(device); err != nil {
			return err
		}
		return netlink.AddrAdd(device, &netlink.Addr{IPNet: netlink.NewIPNet(net.IPv4(203, 0, 113, 200))})
	}); err != nil {
		t.Fatal(err)
	}
	runIn(t, h, "create MINE hash:ip\nadd MINE 198.51.100.9\ncreate KUBE-SRC-ABCDEF hash:ip\nadd KUBE-SRC-ABCDEF 198.51.100.9\n", "ipset", "restore")
	runIn(t, h, ofOthersIPVS, commandsOf(variant)["ip"].restore)
	server := []string{"10.244.1.5:8080"}
	virtualServers(t, h, []virtualServer{
		{"tcp", netip.MustParseAddrPort("203.0.113.200:80"), 0, server},
		{"tcp", netip.MustParseAddrPort("203.0.113.200:30080"), 0, server}, // a node port, at an address that is excluded
		{"tcp", netip.MustParseAddrPort("192.168.0.1:8443"), 60, server},
		{"udp", netip.MustParseAddrPort("192.168.0.1:30080"), 0, server}, // only TCP has this node port
	})
}

// stateIPVS returns what a takeover from the mode ipvs may change.
func stateIPVS(t *testing.T, h *lab.Host, variant string) string {
	t.Helper()
	links := ""
	if err := h.Do(func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			if l.Type() == "dummy" {
				addrs, _ := netlink.AddrList(l, netlink.FAMILY_ALL)
				links += fmt.Sprintln(l.Attrs().Name, addrs)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return runIn(t, h, "", "ipvsadm", "--save", "--numeric") + runIn(t, h, "", "ipset", "save", "-sorted") + links + withoutKubelet(t, h, variant)
}

// TestTakeoverFromModeIPVS swaps kube-proxy in mode ipvs for this one and back, each under traffic. Every second process is
// killed at some instant of the takeover, and the next one goes on.
func TestTakeoverFromModeIPVS(t *testing.T) {
	requireIPVS(t)
	for _, variant := range variants {
		t.Run("iptables-"+variant, func(t *testing.T) {
			l := lab.ForTest(t)
			for _, commands := range commandsOf(variant) { // makes the tables
				runIn(t, l.Node, "*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n", commands.restore, "--noflush")
			}
			leaveOthersIPVS(t, l.Node, variant)
			others := stateIPVS(t, l.Node, variant)
			leaveIPVS(t, l.Node, variant)
			runIn(t, l.Node, "", "ipvsadm", "--set", "900", "5", "10") // IPVS forgets what has ended
			serveEndpoints(t, l)
			for round := range *takeovers {
				t.Logf("takeover %d of %d", round+1, *takeovers)
				p := takeOverFromIPVS(t, l, time.Duration(round%2*(round+1)*900)*time.Millisecond)
				expectStateIPVS(t, l.Node, variant, others)
				t.Logf("way back %d of %d", round+1, *takeovers)
				tr := startClients(t, streamsInModeIPVS(l))
				p.Stop(t)
				backToIPVS(t, l, tr, variant)
				tr.finishWithout(t)
			}
		})
	}
}

// takeOverFromIPVS starts the proxy, and returns it when nothing of the mode ipvs is left. If kill is not 0, a process is
// killed so long after its start, and another one goes on.
func takeOverFromIPVS(t *testing.T, l *lab.Lab, kill time.Duration) *lab.Process {
	t.Helper()
	tr := startClients(t, streamsInModeIPVS(l))
	if kill > 0 {
		p := startOurs(t, l.Node, excluded)
		p.Says(t, "Starting")
		time.Sleep(kill)
		if err := p.Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.Wait()
	}
	p := startOurs(t, l.Node, excluded)
	saysInTime(t, p, "Connections of the mode ipvs keep its virtual servers")
	awaitOurs(t, lab.Conn(t, l.Node))
	tr.flow(t)
	if state := runIn(t, l.Node, "", "ipvsadm", "--list", "--numeric"); !strings.Contains(state, "Masq    0      1 ") {
		t.Errorf("no real server has the weight 0 and a connection:\n%s", state)
	}
	// A process of the node that dials a Service keeps its address on kube-ipvs0, so the traffic ends before the rest goes.
	tr.finishWithout(t)
	awaitGone(t, p)
	return p
}

// finishWithout is finish, and allows no connection to go wrong.
func (tr *traffic) finishWithout(t *testing.T) {
	t.Helper()
	tr.finish(t)
	for _, c := range tr.established {
		c.close()
	}
	if len(tr.lost) > 0 {
		t.Errorf("%d connections went wrong", len(tr.lost))
	}
}

// backToIPVS does as kube-proxy where the proxy has stopped: its own rules, then the end of this proxy's tables. After it,
// clients with session affinity can have connections to several endpoints.
func backToIPVS(t *testing.T, l *lab.Lab, tr *traffic, variant string) {
	t.Helper()
	tr.mayMove()
	leaveIPVS(t, l.Node, variant)
	c := lab.Conn(t, l.Node)
	if _, err := c.Commit(t.Context(), deletion(t, c)); err != nil {
		t.Fatal(err)
	}
}

// awaitGone waits until the proxy has said that it left nothing of the mode ipvs.
func awaitGone(t *testing.T, p *lab.Process) {
	t.Helper()
	saysInTime(t, p, `The rules that another mode of kube-proxy left behind are gone" kind="ipvs"`)
}

// saysInTime is lab.Process.Says on an emulated machine under traffic.
func saysInTime(t *testing.T, p *lab.Process, text string) {
	t.Helper()
	await.Within(t, 3*await.Patience, "the log says "+text, func() error {
		if !strings.Contains(p.Output(), text) {
			return errors.New("it does not")
		}
		return nil
	})
}

func expectStateIPVS(t *testing.T, h *lab.Host, variant, want string) {
	t.Helper()
	if diff := cmp.Diff(want, stateIPVS(t, h, variant)); diff != "" {
		t.Errorf("what is there is not as it has to be (-want +got):\n%s", diff)
	}
}

// streamsInModeIPVS returns those that both modes serve alike: in mode ipvs a load balancer without local endpoints
// refuses, and here it drops.
func streamsInModeIPVS(l *lab.Lab) []*stream {
	return slices.DeleteFunc(streamsOf(l), func(s *stream) bool { return s.to == "192.0.2.70:80" })
}

// excluded are the addresses of others that could be taken for kube-proxy's.
const excluded = "--ipvs-exclude-cidrs=203.0.113.200/32"

// TestLeftoversOfModeIPVS tries what is not a plain takeover.
func TestLeftoversOfModeIPVS(t *testing.T) {
	requireIPVS(t)
	prepare := func(t *testing.T) (l *lab.Lab, others string) {
		l = lab.ForTest(t)
		leaveOthersIPVS(t, l.Node, "nft")
		others = stateIPVS(t, l.Node, "nft")
		leaveIPVS(t, l.Node, "nft")
		serveEndpoints(t, l)
		return l, others
	}
	// establish connects a pod to a Service, through IPVS.
	establish := func(t *testing.T, l *lab.Lab) *connection {
		t.Helper()
		var c *connection
		if err := l.Client.Do(func() (err error) {
			c, err = streamsOf(l)[0].dial()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		return c
	}
	t.Run("a report changes nothing", func(t *testing.T) {
		l, _ := prepare(t)
		before := stateIPVS(t, l.Node, "nft")
		p := startOurs(t, l.Node, "--leftovers=report")
		if count := leftoversMetric(t, l.Node, "ipvs"); count != 23 {
			t.Errorf("the metric counts %v, want 22 sets and a device", count)
		}
		awaitOurs(t, lab.Conn(t, l.Node))
		p.Says(t, `Another mode of kube-proxy left rules behind; they go on serving Services that were changed or deleted since" kind="ipvs"`)
		expectStateIPVS(t, l.Node, "nft", before)
	})
	for name, end := range map[string]func(t *testing.T, h *lab.Host){
		"the timeout ends connections": func(t *testing.T, h *lab.Host) {
			startOurs(t, h, excluded, "--leftovers-drain-timeout=0s").Says(t, "Ended connections of the mode ipvs")
		},
		"--cleanup ends connections": func(t *testing.T, h *lab.Host) {
			if output, err := runCleanup(t, h, excluded); err != nil || !strings.Contains(output, "Ended connections of the mode ipvs") {
				t.Errorf("%v\n%s", err, output)
			}
			startOurs(t, h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, others := prepare(t)
			established := establish(t, l)
			endpoint, err := established.ask("hello\n")
			if err != nil {
				t.Fatal(err)
			}
			end(t, l.Node)
			awaitOurs(t, lab.Conn(t, l.Node))
			expectStateIPVS(t, l.Node, "nft", others)
			// Its next packet is a new connection to conntrack. It goes on if the rules choose its endpoint.
			if reached, err := established.ask("still here\n"); !errors.Is(err, syscall.ECONNRESET) && reached != endpoint {
				t.Errorf("the established connection to %s says %q, %v; want a reset", endpoint, reached, err)
			}
		})
	}
	t.Run("another kube-proxy that runs is named", func(t *testing.T) {
		l, _ := prepare(t)
		established := establish(t, l)
		p := startOurs(t, l.Node, excluded)
		removals := 0
		await.Within(t, 3*await.Patience, "it is named", func() error {
			if strings.Contains(p.Output(), "Another kube-proxy runs on this node") {
				return nil
			}
			// Right after a removal, because the next one is ten seconds away.
			if n := strings.Count(p.Output(), "Removed the rules"); n > removals {
				removals = n
				leaveIPVS(t, l.Node, "nft")
			}
			return errors.New("it is not")
		})
		if _, err := established.ask("still here\n"); err != nil {
			t.Error(err)
		}
	})
	t.Run("going back before its end loses no connection", func(t *testing.T) {
		l := lab.ForTest(t)
		leaveIPVS(t, l.Node, "nft")
		tr := startStreams(t, l, streamsInModeIPVS(l))
		p := startOurs(t, l.Node)
		saysInTime(t, p, "Connections of the mode ipvs keep its virtual servers")
		tr.flow(t)
		p.Stop(t)
		backToIPVS(t, l, tr, "nft")
		tr.finish(t)
	})
	t.Run("5,000 Services go", func(t *testing.T) {
		l, others := prepare(t)
		var many []virtualServer
		if err := l.Node.Do(func() error {
			device, err := netlink.LinkByName("kube-ipvs0")
			if err != nil {
				return err
			}
			for i := range 5000 {
				a := netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})
				many = append(many, virtualServer{"tcp", netip.AddrPortFrom(a, 80), 0, []string{"10.244.1.5:8080", "10.244.2.6:8080"}})
				if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		virtualServers(t, l.Node, many)
		start := time.Now()
		if output, err := runCleanup(t, l.Node, excluded); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		t.Logf("it took %v", time.Since(start))
		expectStateIPVS(t, l.Node, "nft", others)
	})
}
