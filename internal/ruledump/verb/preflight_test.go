package verb

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// kubeadmFile is the file that kubeadm wrote until v1.36, with more fields.
func kubeadmFile(more string) string {
	return "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n" + more
}

// asNode makes the interfaces of a node: primary address 192.0.2.5, another one, and a bridge of pods.
const asNode = `ip link set lo up
ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up
ip addr add 192.0.2.5/24 dev eth0; ip addr add 10.9.0.1/24 dev eth0; ip route add default via 192.0.2.1
ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.244.1.1/24 dev cni0
echo 1 > /proc/sys/net/ipv4/ip_forward
`

// modeIPTables makes the rules of kube-proxy's mode iptables with a variant of the iptables programs.
func modeIPTables(variant string) string {
	const recorded = "../../../integration/takeover/testdata/iptables-"
	return fmt.Sprintf("iptables-%[1]s-restore --noflush < %[2]sip.rules; ip6tables-%[1]s-restore --noflush < %[2]sip6.rules\n", variant, recorded)
}

func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("bash", "-e", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// onNode runs preflight in a network namespace that the script has made a node.
func onNode(t *testing.T, script string, args ...string) (status int, answer Preflight) {
	t.Helper()
	netns.EnterForTest(t)
	shell(t, script)
	return here(t, args...)
}

// look returns what preflight says in the network namespace of the test.
func look(t *testing.T, args ...string) Preflight {
	t.Helper()
	_, answer := here(t, args...)
	return answer
}

// here runs preflight in the network namespace of the test.
func here(t *testing.T, args ...string) (status int, answer Preflight) {
	t.Helper()
	status, stdout, stderr := execute(append([]string{"preflight", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	return status, answer
}

// has reports whether there is a finding: want is its level and its check, and, after a colon, a part of its text.
func (v *Preflight) has(want string) bool {
	head, text, _ := strings.Cut(want, ": ")
	return slices.ContainsFunc(v.Findings, func(f finding) bool {
		return head == string(f.Level)+" "+f.Check && strings.Contains(f.Seen+" | "+f.Why+" | "+f.Do, text)
	})
}

// expect fails the test for each wanted finding that is not there.
func (v *Preflight) expect(t *testing.T, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !v.has(want) {
			t.Errorf("no %q\n%s", want, TextOf(v, "text"))
		}
	}
}

func TestPreflight(t *testing.T) {
	for _, test := range []struct {
		name, script string
		// file is that of kube-proxy; empty for none.
		file   string
		status int
		mode   string
		// want has level, check and a part of a finding each, not checks without a finding.
		want, not []string
	}{
		{
			name: "an empty node with a clean file", script: asNode,
			file: kubeadmFile("mode: nftables"), status: 0, mode: "nftables",
			want: []string{"go kernel: has every feature", "go detect-local: fits this node"},
			not:  []string{"leftovers", "node-ports", "rules", "mark", "firewall", "ipvs"},
		},
		{
			name: "an empty node without a file", script: asNode, status: 1, mode: "none",
			want: []string{"look config: --from-config", "go services: not looked at"},
			not:  []string{"leftovers", "node-ports"},
		},
		{
			name: "a file that the proxy refuses", script: asNode,
			file: kubeadmFile("detectLocalMode: Somehow"), status: exitStop, mode: "none",
			want: []string{`stop config: detectLocalMode: Unsupported value: "Somehow"`},
		},
		{
			name: "direct return on a node without obstacles", script: asNode + "echo 0 | tee /proc/sys/net/ipv4/conf/*/rp_filter\n",
			file: kubeadmFile("mode: nftables\nfeatureGates: {NFTProxyDirectReturn: true}"), status: 0, mode: "nftables",
			want: []string{"go kernel: has every feature"},
			not:  []string{"direct-return"},
		},
		{
			name: "direct return by strict interfaces and an overlay", script: asNode + `echo 0 | tee /proc/sys/net/ipv4/conf/*/rp_filter; echo 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter
ip link add vx type vxlan id 1 dstport 8472 dev eth0; ip link set vx mtu 1450 up; ip addr add 10.244.1.0/32 dev vx
ip route add 10.244.2.0/24 via 10.244.2.0 dev vx onlink
nft 'add table inet fw; add chain inet fw out { type filter hook output priority 0; policy drop; }'
`,
			file: kubeadmFile("mode: nftables\nfeatureGates: {NFTProxyDirectReturn: true}"), status: 1, mode: "nftables",
			want: []string{
				"look direct-return: rp_filter is 1 on eth0 |", "look direct-return: a smaller MTU than the default route (1500): vx (1450) |",
				"look direct-return: packets of this node that no rule accepts are dropped by inet fw out |",
			},
		},
		{
			name: "an overlay without direct return", script: asNode + "ip route add 10.244.2.0/24 dev cni0 mtu 1400\n",
			file: kubeadmFile("mode: nftables"), status: 0, mode: "nftables",
			not: []string{"direct-return"},
		},
		{
			name: "another mode in the file", script: asNode,
			file: kubeadmFile("mode: ipvs\nipvs: {scheduler: lc, strictARP: true, tcpTimeout: 900s, unknown: 1}"), status: exitStop, mode: "ipvs",
			want: []string{
				`stop config: this kube-proxy does not have the mode "ipvs"`, "look ipvs: ipvs.scheduler is lc", "go ipvs: MetalLB",
				"look ipvs: tcpEstablishedTimeout", "look config: ipvs.unknown",
			},
		},
		{
			name: "node ports where they will not answer", script: asNode,
			file: kubeadmFile("mode: iptables\niptables: {masqueradeBit: 15}"), status: exitStop, mode: "iptables",
			want: []string{"look node-ports: on 127.0.0.1, 10.9.0.1, 10.244.1.1, and will not; connection tracking has no connection", `look node-ports: add "localhost"`,
				"go mark: from 0x8000 to 0x4000"},
		},
		{
			name: "node ports that stay", script: asNode,
			file: kubeadmFile("nodePortAddresses: [192.0.2.0/24, '2001:db8::/32']"), status: 0, mode: "iptables",
			want: []string{`go node-ports: ["192.0.2.0/24" "2001:db8::/32"] before and after`},
			not:  []string{"mark"},
		},
		{
			name: "loopback that the file names", script: asNode,
			file: kubeadmFile("nodePortAddresses: [0.0.0.0/0]"), status: 1, mode: "iptables",
			want: []string{"look node-ports: on 127.0.0.1, and will not"},
		},
		{
			name: "a file of another mode than the rules", script: asNode + modeIPTables("nft"),
			file: kubeadmFile("mode: nftables"), status: 1, mode: "iptables",
			want: []string{"look mode: the settings mean mode nftables, and the node has rules of mode iptables"},
		},
		{
			name: "both variants", script: asNode + modeIPTables("nft") + modeIPTables("legacy"),
			file: kubeadmFile("nodePortAddresses: [primary]\niptables: {localhostNodePorts: false}"), status: 1, mode: "iptables",
			want: []string{"look leftovers: both variants", "go leftovers: iptables-nft: ", "go leftovers: iptables-legacy: "},
			not:  []string{"rules", "firewall"},
		},
		{
			name: "mode ipvs", script: asNode + "ip link add kube-ipvs0 type bridge; ip addr add 10.96.0.10/32 dev kube-ipvs0", status: 1, mode: "ipvs",
			want: []string{"go leftovers: ipvs: 1, for example kube-ipvs0", "look node-ports: on 127.0.0.1, 10.9.0.1, 10.244.1.1,"},
		},
		{
			name: "kube-proxy's tables", script: asNode + "nft -f ../../../integration/takeover/testdata/ruleset.nft",
			file: kubeadmFile("mode: nftables"), status: 0, mode: "nftables",
			want: []string{"go tables: table ip kube-proxy exists", "go tables: table ip6 kube-proxy exists"},
			not:  []string{"firewall", "rules", "mark"},
		},
		{
			name: "pods that are not here", script: asNode + "ip addr del 10.244.1.1/24 dev cni0",
			file: kubeadmFile("mode: nftables"), status: 1, mode: "nftables",
			want: []string{"look detect-local: no route or address of this node is in 10.244.0.0/16"},
		},
		{
			name: "no such bridge", script: asNode,
			file: kubeadmFile("mode: nftables\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}"), status: 1, mode: "nftables",
			want: []string{"look detect-local: BridgeInterface: there is no interface cbr0"},
		},
		{
			name:   "a node that does not forward",
			script: asNode + "echo 0 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet",
			file:   kubeadmFile("mode: nftables"), status: 1, mode: "nftables",
			want: []string{"look sysctls: net.ipv4.ip_forward is 0", "go sysctls: CVE-2020-8558"},
		},
		{
			name: "another service proxy", script: asNode + "ip link add kube-dummy-if type bridge",
			file: kubeadmFile("mode: nftables"), status: exitStop, mode: "nftables",
			want: []string{"stop neighbours: kube-router serves Services"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var args []string
			if test.file != "" {
				path := filepath.Join(t.TempDir(), "config.conf")
				if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = []string{"--from-config", path}
			}
			status, got := onNode(t, test.script, args...)
			if status != test.status || got.Mode != test.mode {
				t.Errorf("status %d, mode %s; want %d, %s", status, got.Mode, test.status, test.mode)
			}
			got.expect(t, test.want...)
			for _, not := range test.not {
				if slices.ContainsFunc(got.Findings, func(f finding) bool { return f.Check == not }) {
					t.Errorf("there is a finding of %s", not)
				}
			}
			if t.Failed() {
				t.Log(TextOf(&got, "text"))
			}
		})
	}
}

func TestPreflightOthers(t *testing.T) {
	for _, variant := range []string{"legacy", "nft"} {
		t.Run(variant, func(t *testing.T) {
			rules := strings.ReplaceAll(`
V -P FORWARD DROP
V -P INPUT DROP
V -t nat -N CNI-HOSTPORT-SETMARK
V -t nat -A CNI-HOSTPORT-SETMARK -m comment --comment "as portmap" -j KUBE-MARK-MASQ
V -t mangle -A PREROUTING -m mark --mark 0x4000/0x4000 -j RETURN
V -t mangle -A FORWARD -m mark --mark 0x4010/0xff0ff -j RETURN
V -t mangle -A PREROUTING -p tcp -m tcp --dport 81 -j MARK --set-xmark 0x4000/0x4000
V -t mangle -N elsewhere
V -t mangle -A elsewhere -j MARK --set-xmark 0x10/0x30
V -t mangle -A elsewhere -m mark --mark 0x10 -j RETURN
V -t filter -N DROPPED
V -t filter -A DROPPED -j MARK --set-xmark 0x8000/0x8000
`, "V", "iptables-"+variant)
			status, got := onNode(t, asNode+modeIPTables(variant)+rules)
			if status != 1 {
				t.Errorf("status %d", status)
			}
			got.expect(t,
				"look rules: lead to chains of kube-proxy: ip nat CNI-HOSTPORT-SETMARK to KUBE-MARK-MASQ |",
				"look mark: set bits of the masquerade mark: ip mangle PREROUTING (0x4000) |",
				"go mark: compare bits of the masquerade mark: ip mangle PREROUTING (0x4000), ip mangle FORWARD (0xc000) |",
				"go mark: have to do with mark 0x8000: ip filter DROPPED |",
				"look firewall: forwarded packets that no rule accepts are dropped by ip filter FORWARD |",
				"look firewall: packets to this node that no rule accepts are dropped by ip filter INPUT |",
				"go neighbours: portmap (CNI)",
			)
		})
	}
	for name, accept := range map[string]string{
		"iptables-legacy": "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -m conntrack --ctstate ESTABLISHED,DNAT -j ACCEPT",
		"iptables-nft":    "iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT",
		"nft":             "nft add table inet fw; nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; }'; nft add rule inet fw f ct status dnat accept",
	} {
		t.Run("a firewall that accepts Services, "+name, func(t *testing.T) {
			if _, got := onNode(t, asNode+modeIPTables("nft")+accept); got.has("look firewall") || got.has("go firewall") {
				t.Error(TextOf(&got, "text"))
			}
		})
	}
	for name, other := range map[string]string{
		"iptables-legacy": "iptables-legacy -P FORWARD DROP; iptables-legacy -A FORWARD -m conntrack ! --ctstate DNAT -j ACCEPT; iptables-legacy -A FORWARD -m conntrack --ctstate DNAT -j DROP",
		"nft":             "nft add table inet fw; nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; }'; nft add rule inet fw f ct status snat accept",
	} {
		t.Run("a firewall that accepts others, "+name, func(t *testing.T) {
			if _, got := onNode(t, asNode+modeIPTables("nft")+other); !got.has("look firewall: forwarded packets") {
				t.Error(TextOf(&got, "text"))
			}
		})
	}
	for name, rules := range map[string]string{
		"as RHEL and Oracle's images have it": "V -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
		"with a comment and a log":            "V -A FORWARD -m comment --comment 'no others' -j LOG; V -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
		"in a chain of its own":               "V -N fw; V -N end; V -A FORWARD -j fw; V -A fw -p tcp -j ACCEPT; V -A fw -g end; V -A end -j REJECT",
		"before what accepts":                 "V -A FORWARD -j REJECT; V -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT; V -A FORWARD -j ACCEPT",
	} {
		for _, variant := range []string{"legacy", "nft"} {
			t.Run("an unconditional reject "+name+", "+variant, func(t *testing.T) {
				_, got := onNode(t, asNode+modeIPTables(variant)+strings.ReplaceAll(rules, "V", "iptables-"+variant))
				got.expect(t, "look firewall: forwarded packets that no rule accepts are dropped by ip filter FORWARD (reject) |")
			})
		}
	}
	for name, rules := range map[string]string{
		"on a condition":                     "V -A FORWARD -p sctp -j REJECT; V -A FORWARD ! -i eth0 -j DROP; V -A FORWARD -s 192.0.2.7 -j DROP; V -A FORWARD -m limit --limit 1/s -j DROP",
		"in a chain reached on a condition":  "V -N fw; V -A fw -j DROP; V -A FORWARD -p sctp -j fw; V -A FORWARD -o eth0 -g fw",
		"after what accepts translated ones": "V -A FORWARD -m conntrack --ctstate DNAT,ESTABLISHED -j ACCEPT; V -A FORWARD -j REJECT",
		"after what accepts everything":      "V -P FORWARD DROP; V -N fw; V -A FORWARD -j fw; V -A fw -j ACCEPT; V -A FORWARD -j DROP",
		"after a return":                     "V -N fw; V -A FORWARD -j fw; V -A fw -j RETURN; V -A fw -j DROP",
	} {
		for _, variant := range []string{"legacy", "nft"} {
			t.Run("a drop "+name+", "+variant, func(t *testing.T) {
				if _, got := onNode(t, asNode+modeIPTables(variant)+strings.ReplaceAll(rules, "V", "iptables-"+variant)); got.has("look firewall") {
					t.Error(TextOf(&got, "text"))
				}
			})
		}
	}
	t.Run("unconditional rules of nf_tables", func(t *testing.T) {
		_, got := onNode(t, asNode+modeIPTables("nft")+`iptables-nft -A INPUT -j NFQUEUE --queue-num 1; nft -f - <<X
table inet fw {
	chain dropped { counter log prefix "x" drop; }
	chain f { type filter hook forward priority 0; ct state established accept; jump dropped; accept; }
	chain i { type filter hook input priority 0; meta mark set 1 reject; }
	chain g { type filter hook forward priority 1; tcp dport 80 drop; meta l4proto vmap { sctp : drop }; fib daddr type local reject; }
}
X`)
		got.expect(t, "look firewall: forwarded packets that no rule accepts are dropped by inet fw f |",
			"look firewall: packets to this node that no rule accepts are dropped by ip filter INPUT (queue), inet fw i (reject) |")
		if got.has("look firewall: inet fw g") {
			t.Error(TextOf(&got, "text"))
		}
	})
	t.Run("nf_tables", func(t *testing.T) {
		_, got := onNode(t, asNode+`nft -f - <<X
table inet fw {
	chain f { type filter hook forward priority 0; policy drop;
		meta mark & 0x0000c000 == 0x00004000 accept
		meta mark set meta mark or 0x4000
		meta mark set 0x1
		meta mark 0x1 accept
	}
}
table inet firewalld {
}
X`)
		got.expect(t,
			"look mark: set bits of the masquerade mark: inet fw f (0x4000), inet fw f (0xc000) |",
			"go mark: compare bits of the masquerade mark: inet fw f (0xc000) |",
			"go firewall: dropped by inet fw f |", // nothing of mode iptables serves here
			"go neighbours: firewalld",
		)
	})
}

// What the rules of the node do not show.
func TestPreflightFiles(t *testing.T) {
	lock, dir := xtablesLock, cniDir
	t.Cleanup(func() { xtablesLock, cniDir = lock, dir })
	xtablesLock, cniDir = filepath.Join(t.TempDir(), "lock"), t.TempDir()
	const noLock, mark = "look leftovers: there is no /run/xtables.lock | ", "look rules: externalSetMarkChain is KUBE-MARK-MASQ in "
	_, got := onNode(t, asNode+modeIPTables("nft"))
	if got.has(noLock) || got.has(mark) {
		t.Errorf("without rules of iptables-legacy, and without a network plugin:\n%s", TextOf(&got, "text"))
	}
	shell(t, modeIPTables("legacy"))
	file := filepath.Join(cniDir, "10-bridge.conflist")
	if err := os.WriteFile(file, []byte(`{"plugins":[{"type":"portmap","externalSetMarkChain":"KUBE-MARK-MASQ"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got = look(t)
	got.expect(t, noLock, mark+file+" | ")
	if err := os.WriteFile(xtablesLock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := look(t); got.has(noLock) {
		t.Errorf("with the lock:\n%s", TextOf(&got, "text"))
	}
}

func TestPreflightConnections(t *testing.T) {
	netns.EnterForTest(t)
	shell(t, asNode+`iptables-legacy -t nat -A OUTPUT -p tcp -d 10.9.0.1 --dport 30080 -j DNAT --to-destination 192.0.2.5:8080
iptables-legacy -t nat -N KUBE-SERVICES`)
	server, err := net.Listen("tcp4", "192.0.2.5:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client, err := net.Dial("tcp4", "10.9.0.1:30080")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	manifests := filepath.Join(t.TempDir(), "services.yaml")
	write := func(port int) {
		text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, externalIPs: [203.0.113.5], sessionAffinity: ClientIP, ports: [{port: 80, nodePort: %[1]d}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {clusterIP: 10.96.0.2, externalIPs: [203.0.113.5], ports: [{port: 80}, {name: dns, port: 53, protocol: UDP, nodePort: %[1]d}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 10.9.0.1}]}
`, port)
		if err := os.WriteFile(manifests, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const used = "look node-ports: connections there that connection tracking has: 1, for example 10.9.0.1 to 10.9.0.1:30080 |"
	got := look(t)
	got.expect(t, used)
	write(30080)
	got = look(t, "--manifests", manifests)
	got.expect(t, used)
	write(30081)
	got = look(t, "--manifests", manifests)
	got.expect(t,
		"look node-ports: on 127.0.0.1, 10.9.0.1, 10.244.1.1, and will not; connection tracking has no connection there",
		"go services: these use externalIPs: shop/other, shop/web", "go services: these have session affinity: shop/web",
		"look services: 203.0.113.5:80/TCP is claimed by several Services",
	)
	// The Node's own address is another one than that from which packets are sent.
	got = look(t, "--manifests", manifests, "--node=node-1")
	got.expect(t, "look node-ports: on 127.0.0.1, 192.0.2.5, 10.244.1.1, and will not")
	file := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(file, []byte(kubeadmFile("nodePortAddresses: [primary, localhost]\ndetectLocalMode: NodeCIDR")), 0o600); err != nil {
		t.Fatal(err)
	}
	got = look(t, "--manifests", manifests, "--node=node-1", "--from-config", file)
	got.expect(t, "look services: these have node ports of UDP or SCTP: shop/other |",
		"look detect-local: the Node node-1 has no spec.podCIDRs |")
	write(0)
	got = look(t, "--manifests", manifests)
	got.expect(t, "go node-ports: no Service has a node port")
}

func TestPreflightPorts(t *testing.T) {
	netns.EnterForTest(t)
	shell(t, asNode)
	server, err := net.Listen("tcp4", "127.0.0.1:10249")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if got := look(t); !got.has("look ports: a program that is no kube-proxy listens at port 10249 |") {
		t.Error(TextOf(&got, "text"))
	}
	shell(t, modeIPTables("nft"))
	if got := look(t); !got.has("go ports: a program listens at port 10249 |") {
		t.Error(TextOf(&got, "text"))
	}
	server.Close()
	if got := look(t); got.has("go ports") || got.has("look ports") {
		t.Error(TextOf(&got, "text"))
	}
}

// A kube-proxy that runs, in this network namespace, has a command line with its file.
func TestPreflightBesideAKubeProxy(t *testing.T) {
	netns.EnterForTest(t)
	shell(t, asNode)
	file := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(file, []byte(kubeadmFile("mode: ipvs\nipvs: {scheduler: wlc}")), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (stop func()) {
		old := exec.Command("/bin/bash")
		old.Dir = filepath.Dir(file)
		old.Args = append([]string{"/usr/local/bin/kube-proxy", "-c", "read", "kube-proxy"}, args...)
		if _, err := old.StdinPipe(); err != nil { // read waits for it
			t.Fatal(err)
		}
		if err := old.Start(); err != nil {
			t.Fatal(err)
		}
		stop = sync.OnceFunc(func() { _ = old.Process.Kill(); _ = old.Wait() })
		t.Cleanup(stop)
		return stop
	}
	if got := look(t); got.Mode != "none" || got.has("go running") {
		t.Errorf("before it runs:\n%s", TextOf(&got, "text"))
	}
	for _, named := range []string{filepath.Base(file), file} { // also one in the process's own directory
		stop := start("--config=" + named)
		got := look(t)
		got.expect(t, "go running: --config="+named, "look ipvs: ipvs.scheduler is wlc", `stop config: does not have the mode "ipvs"`)
		stop()
	}
	stop := start("--config=missing")
	got := look(t)
	got.expect(t, "look config: the settings of the kube-proxy are not known: open /proc/")
	stop()
	start("--config=" + file)
	start("--proxy-mode", "iptables")
	got = look(t)
	got.expect(t, "look running: 2 processes called kube-proxy")
}

func TestPreflightCollect(t *testing.T) {
	answer := func(node string, findings ...finding) string {
		v := Preflight{nodeDocument: nodeDocument{document: documentOf("Preflight"), Node: node}, Verdict: levelGo, Mode: "iptables"}
		for _, f := range findings {
			v.add(f)
		}
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	ports := func(seen string) finding {
		return finding{"node-ports", levelLook, "on " + seen, "fewer addresses", "name them"}
	}
	kernel := finding{"kernel", levelStop, "no numgen", "it would end", "load it"}
	fine := finding{Check: "kernel", Level: levelGo, Seen: "Linux"}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := write("node-1.json", answer("node-1", fine, ports("10.0.0.1")))
	logs := write("logs", "ruledump: a line of another kind\n"+answer("node-3", kernel)+answer("node-2", ports("10.0.0.2"), fine)+answer("node-3", kernel, ports("10.0.0.3")))
	good := write("node-4.json", answer("node-4", fine))
	status, stdout, stderr := execute("preflight", "--collect", one, logs, good)
	const want = `NODE    VERDICT                     MODE NOW  STOP  LOOK
node-3  do not swap yet             iptables  1     1
node-1  look at the findings first  iptables  0     1
node-2  look at the findings first  iptables  0     1
node-4  go                          iptables  0     0

stop kernel (1: node-3): no numgen
     why: it would end
     do:  load it

look node-ports (3: node-1, node-2, node-3): on 10.0.0.1
     why: fewer addresses
     do:  name them
`
	if diff := cmp.Diff(want, stdout); diff != "" || status != exitStop {
		t.Errorf("status %d %s (-want +got):\n%s", status, stderr, diff)
	}
	if status, _, _ := execute("preflight", "--collect", one, good); status != exitDifferent {
		t.Errorf("status %d, want %d", status, exitDifferent)
	}
	if status, _, _ := execute("preflight", "--collect", good); status != 0 {
		t.Errorf("status %d, want 0", status)
	}
	for _, bad := range []struct{ text, want string }{
		{"nothing\n", "it has no output of ruledump preflight -o json"},
		{answer("node-1")[:30], "answer 1: unexpected EOF"},
		{answer("node-1") + "{}\n", "answer 2 is  of , want Preflight of ruledump.nftproxy/v1"},
		{answer("node-1", finding{Check: "later", Level: levelGo, Seen: "x"}) + strings.Replace(answer("node-2", fine), `"level": "go"`, `"level": "maybe"`, 1), `answer 2, finding kernel: level "maybe" is not known`},
	} {
		path := write("bad", bad.text)
		if status, _, stderr := execute("preflight", "--collect", path); status != exitFailed || !strings.Contains(stderr, path+": "+bad.want) {
			t.Errorf("status %d, %q; want %q", status, stderr, bad.want)
		}
	}
	if status, _, stderr := execute("preflight", one); status != exitFailed || !strings.Contains(stderr, "give files with --collect") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

func TestPreflightDirectReturn(t *testing.T) {
	netns.EnterForTest(t)
	shell(t, asNode)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	services := write("services.yaml", `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {nftproxy.io/direct-return: "true"}}
spec: {clusterIP: 10.96.0.1, externalIPs: [203.0.113.5], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.7.5], nodeName: node-7}, {addresses: [10.99.1.5], nodeName: node-1}]
`)
	off := write("off.yaml", kubeadmFile("mode: nftables\n"))
	on := write("on.yaml", kubeadmFile("mode: nftables\nfeatureGates: {NFTProxyDirectReturn: true}\n"))
	got := look(t, "--manifests", services, "--from-config", off)
	got.expect(t, "look direct-return: these ask for direct return: shop/web | without the feature gate NFTProxyDirectReturn")
	got = look(t, "--manifests", services, "--from-config", on)
	got.expect(t, "go direct-return: these ask for direct return: shop/web |")
	shell(t, "ip xfrm policy add dir out dst 10.99.0.0/16 tmpl proto esp")
	if got = look(t, "--manifests", services, "--from-config", on, "--node", "node-1"); got.has("look direct-return: an xfrm policy") {
		t.Errorf("a policy for this node's pods is in the way:\n%s", TextOf(&got, "text"))
	}
	shell(t, "ip xfrm policy add dir out dst 10.244.0.0/16 tmpl proto esp")
	got = look(t, "--manifests", services, "--from-config", on, "--node", "node-1")
	got.expect(t, "look direct-return: an xfrm policy for 10.244.0.0/16 would not match")
}
