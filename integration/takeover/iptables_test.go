package takeover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// iptablesCommands are the programs of one family of addresses.
type iptablesCommands struct{ save, restore string }

// variants are the two kernel interfaces that the iptables programs write to, by the suffix of the programs.
var variants = []string{"nft", "legacy"}

// commandsOf returns the programs that write to one of the kernel's interfaces, by what they are recorded as.
func commandsOf(variant string) map[string]iptablesCommands {
	return map[string]iptablesCommands{
		"ip":  {"iptables-" + variant + "-save", "iptables-" + variant + "-restore"},
		"ip6": {"ip6tables-" + variant + "-save", "ip6tables-" + variant + "-restore"},
	}
}

func recordedIPTables(family string) string { return fmt.Sprintf("testdata/iptables-%s.rules", family) }

// runIn runs a program in the host, and returns what it prints.
func runIn(t *testing.T, h *lab.Host, stdin string, program string, args ...string) string {
	t.Helper()
	var out, stderr strings.Builder
	if err := h.Do(func() error {
		cmd := exec.Command(program, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
		return cmd.Run()
	}); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, stderr.String())
	}
	return out.String()
}

// iptablesPath makes a directory in which the iptables programs are those of a variant.
func iptablesPath(t *testing.T, variant string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-" + variant + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(dir, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// savedIPTables returns what iptables-save prints, without what differs from run to run. A counter of
// nfacct, which kube-proxy makes by other means, is left out too: rules that name it load only where it is.
func savedIPTables(t *testing.T, h *lab.Host, variant, family string) string {
	t.Helper()
	text := runIn(t, h, "", commandsOf(variant)[family].save)
	text = regexp.MustCompile(`(?m)^#.*\n| -m nfacct --nfacct-name +\S+`).ReplaceAllString(text, "")
	return regexp.MustCompile(`(?m) \[\d+:\d+\]$`).ReplaceAllString(text, " [0:0]")
}

// recordIPTables runs the kube-proxy of the flag in its mode iptables.
func recordIPTables(t *testing.T) {
	t.Helper()
	l, dir := lab.ForTest(t), iptablesPath(t, "nft")
	p := startKubeProxyInMode(t, l.Node, "iptables", dir)
	for family := range commandsOf("nft") {
		await.Until(t, "kube-proxy has synced "+family, func() error {
			if !strings.Contains(savedIPTables(t, l.Node, "nft", family), "KUBE-SEP-") {
				return errors.New("there is no endpoint")
			}
			return nil
		})
	}
	p.Stop(t)
	version, err := exec.Command(*kubeProxy, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	for family, commands := range commandsOf("nft") {
		keep(t, recordedIPTables(family), fmt.Sprintf("%s after kube-proxy (%s, mode iptables) was given manifests.yaml.", commands.save, strings.TrimSpace(string(version))),
			savedIPTables(t, l.Node, "nft", family))
	}
}

// leaveIPTables makes the recorded rules with the programs of a variant.
func leaveIPTables(t *testing.T, h *lab.Host, variant string) {
	t.Helper()
	for family, commands := range commandsOf(variant) {
		rules, err := os.ReadFile(recordedIPTables(family))
		if err != nil {
			t.Fatal(err)
		}
		runIn(t, h, string(rules), commands.restore, "--noflush")
	}
	if *oldServices > 0 {
		runIn(t, h, rulesOfServices(*oldServices), commandsOf(variant)["ip"].restore, "--noflush")
	}
}

// rulesOfServices are more rules as those that were recorded, of Services with two endpoints, which nobody dials.
func rulesOfServices(n int) string {
	var chains, rules strings.Builder
	for i := range n {
		service, of := fmt.Sprintf("KUBE-SVC-%016X", i), fmt.Sprintf(`-m comment --comment "more/service-%d"`, i)
		to := fmt.Sprintf("-d 10.97.%d.%d/32 -p tcp %s -m tcp --dport 80", i>>8, i&0xff, of)
		fmt.Fprintf(&chains, ":%s - [0:0]\n", service)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES %s -j %s\n-A %s ! -s 10.244.0.0/16 %s -j KUBE-MARK-MASQ\n", to, service, service, to)
		for e, draw := range []string{"-m statistic --mode random --probability 0.5", ""} {
			endpoint := fmt.Sprintf("KUBE-SEP-%016X", 2*i+e)
			fmt.Fprintf(&chains, ":%s - [0:0]\n", endpoint)
			fmt.Fprintf(&rules, "-A %s %s %s -j %s\n-A %s -s 10.244.1.%d/32 %s -j KUBE-MARK-MASQ\n", service, of, draw, endpoint, endpoint, e+5, of)
			fmt.Fprintf(&rules, "-A %s -p tcp %s -m tcp -j DNAT --to-destination 10.244.1.%d:8080\n", endpoint, of, e+5)
		}
	}
	return "*nat\n" + chains.String() + rules.String() + "COMMIT\n"
}

// startWithoutServices starts this module's kube-proxy in a cluster whose Services are all gone but one.
func startWithoutServices(t *testing.T, h *lab.Host, more ...string) *lab.Process {
	t.Helper()
	dir := t.TempDir()
	objects := "apiVersion: v1\nkind: Node\nmetadata: {name: " + lab.NodeName + "}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.1}]}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: stays, namespace: default}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}\n" +
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata: {name: stays, namespace: default, labels: {kubernetes.io/service-name: stays}}\n" +
		"endpoints: [{addresses: [192.168.0.9]}]\nports: [{port: 6443}]\n"
	if err := os.WriteFile(filepath.Join(dir, "cluster.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	return lab.Start(t, h, "kube-proxy", slices.Concat(flags, []string{"--manifests", dir}, more)...)
}

// dialDeleted dials, from a pod, a Service that kube-proxy's old rules have and the cluster has no more.
func dialDeleted(l *lab.Lab, patience time.Duration) error {
	return l.Client.Do(func() error {
		conn, err := net.DialTimeout("tcp", "10.96.0.10:80", patience)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// leftoversMetric waits until the proxy's metrics show its first look, and returns how many chains of a kind there are.
func leftoversMetric(t *testing.T, h *lab.Host, kind string) (count float64) {
	t.Helper()
	pattern := regexp.MustCompile(`(?m)^kubeproxy_other_modes_leftovers\{kind="` + kind + `"\} (\d+)$`)
	await.Until(t, "the metric of leftovers is there", func() error {
		return h.Do(func() error {
			conn, err := net.DialTimeout("tcp", "127.0.0.1:10249", time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprint(conn, "GET /metrics HTTP/1.0\r\n\r\n")
			page, err := io.ReadAll(conn)
			if err != nil {
				return err
			}
			match := pattern.FindSubmatch(page)
			if match == nil {
				return errors.New("it is not")
			}
			count, err = strconv.ParseFloat(string(match[1]), 64)
			return err
		})
	})
	return count
}

// Old rules that stay go on serving a Service that is deleted, until --cleanup removes them.
func TestLeftoversOfModeIPTables(t *testing.T) {
	if *kubeProxy != "" {
		recordIPTables(t)
	}
	for _, variant := range variants {
		t.Run("iptables-"+variant, func(t *testing.T) {
			if *kubeProxy != "" {
				kubeProxyCleansUp(t, variant)
			}
			l := lab.ForTest(t)
			serveEndpoints(t, l)
			leaveIPTables(t, l.Node, variant)
			p := startWithoutServices(t, l.Node, "--leftovers=report")
			if count := leftoversMetric(t, l.Node, "iptables-"+variant); count < 50 {
				t.Errorf("the metric counts %v chains", count)
			}
			awaitTables(t, lab.Conn(t, l.Node))
			if err := dialDeleted(l, await.Patience); err != nil {
				t.Errorf("the old rules do not serve the deleted Service: %v; this test shows nothing", err)
			}
			p.Stop(t)
			said := "Another mode of kube-proxy left rules behind; they go on serving Services that were changed or deleted since\" kind=\"iptables-" + variant
			if n := strings.Count(p.Output(), said); n != 1 {
				t.Errorf("the log says %d times, want once: %s", n, said)
			}

			output, err := runCleanup(t, l.Node)
			if !strings.Contains(output, `"Removed" table="ip kube-proxy"`) || !strings.Contains(output, `"Removed" table="ip6 kube-proxy"`) {
				t.Errorf("--cleanup does not say which tables it removed:\n%s", output)
			}
			if err != nil || !strings.Contains(output, "Removed what the modes iptables and ipvs left, and the rules that led there") {
				t.Errorf("--cleanup ended with %v and says:\n%s", err, output)
			}
			expectNoKubeProxyChain(t, l.Node, variant, "--cleanup")
			if err := dialDeleted(l, time.Second); err == nil {
				t.Error("the deleted Service is served after --cleanup")
			}
			if output, _ := runCleanup(t, l.Node); !strings.Contains(output, "Nothing to remove") {
				t.Errorf("a second --cleanup says:\n%s", output)
			}
		})
	}
}

// kubeProxyCleansUp checks what docs/deploy.md says of Kubernetes' kube-proxy: that it removes what its mode iptables
// left, told to by --cleanup or when it starts in the mode nftables.
func kubeProxyCleansUp(t *testing.T, variant string) {
	t.Helper()
	for name, run := range map[string]func(h *lab.Host, dir string){
		"--cleanup": func(h *lab.Host, dir string) {
			if err := startKubernetes(t, h, dir, "--cleanup").Wait(); err != nil {
				t.Errorf("--cleanup: %v", err)
			}
		},
		"a start in mode nftables": func(h *lab.Host, dir string) { startKubeProxy(t, h, dir).Stop(t) },
	} {
		l, dir := lab.ForTest(t), iptablesPath(t, variant)
		leaveIPTables(t, l.Node, variant)
		run(l.Node, dir)
		expectNoKubeProxyChain(t, l.Node, variant, name)
	}
}

func expectNoKubeProxyChain(t *testing.T, h *lab.Host, variant, after string) {
	t.Helper()
	for family := range commandsOf(variant) {
		// KUBE-FIREWALL is the kubelet's.
		if rules := strings.ReplaceAll(savedIPTables(t, h, variant, family), "KUBE-FIREWALL", ""); strings.Contains(rules, "KUBE-") {
			t.Errorf("%s left of %s:\n%s", after, family, rules)
		}
	}
}

// runCleanup returns what --cleanup prints, and how it ended.
func runCleanup(t *testing.T, h *lab.Host, more ...string) (output string, err error) {
	t.Helper()
	p := lab.Start(t, h, "kube-proxy", append([]string{"--cleanup"}, more...)...)
	err = p.Wait()
	return p.Output(), err
}

func awaitTables(t *testing.T, c *nft.Conn) {
	t.Helper()
	await.Until(t, "there are tables", func() error {
		there, err := c.HasTable(t.Context(), nft.FamilyIP, compiler.TableName)
		if err == nil && !there {
			err = errors.New("there are none")
		}
		return err
	})
}
