package verb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newPreflightCommand() *cobra.Command {
	var p preflight
	var collects, stay bool
	format := newFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "preflight [--from-config FILE] | preflight --collect FILE...",
		Short: "Say what will change when this node's kube-proxy is replaced",
		Long: `preflight looks at a node that runs kube-proxy in any mode, before its image is swapped, and
says what will change for this cluster: what it saw, why that matters, and what to do.

The settings are those of the file that kube-proxy has (--from-config). Without it, preflight
looks for a kube-proxy that runs in this network namespace, and reads the file that its command
line names. With --kubeconfig or --manifests, or by the kubeconfig that the file names, it looks
at the Services too.

It needs CAP_NET_ADMIN. As the proxy does when it starts, it asks the kernel for each feature,
with transactions that end by deleting what they made; it changes nothing else.

The exit status is 0 if nothing speaks against the swap, 1 if there is something to look at
first, 2 if preflight itself failed, and 3 if the swap would fail.

--collect reads what preflight -o json printed on many nodes, and prints one table.`,
		Example: `  # On a node, with the file of its kube-proxy.
  ruledump preflight --from-config /var/lib/kube-proxy/config.conf

  # With the Services of the cluster.
  ruledump preflight --kubeconfig /etc/kubernetes/kubelet.conf --node node-1

  # Of all nodes: deploy/kustomize/preflight runs it on each.
  kubectl -n kube-system logs -l app.kubernetes.io/name=nftproxy-preflight --tail=-1 |
    ruledump preflight --collect -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if collects != (len(args) > 0) {
				return errors.New("give files with --collect, and only with it")
			}
			var answer interface {
				View
				worst() level
			}
			var err error
			if collects {
				var byNode map[string]*Preflight
				byNode, err = collect[Preflight](cmd, args, "Preflight")
				answer = tableOf(byNode)
			} else {
				answer, err = p.run(cmd.Context())
			}
			if err == nil {
				err = format.show(cmd.OutOrStdout(), answer)
			}
			switch {
			case err != nil:
				return err
			case stay:
				ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
				defer stop()
				<-ctx.Done()
				return nil
			}
			return map[level]error{levelLook: errDifferent, levelStop: errStop}[answer.worst()]
		},
	}
	format.addTo(cmd)
	flags := cmd.Flags()
	flags.StringVar(&p.config, "from-config", "",
		"KubeProxyConfiguration file of the kube-proxy to replace, v1alpha1 or v1alpha2")
	flags.StringVar(&p.kubeconfig, "kubeconfig", "",
		"look at the Services of a cluster too, which are listed once and not changed")
	flags.StringVar(&p.manifests, "manifests", "",
		"look at the Services in this directory of manifests, or in one such file, too")
	flags.StringVar(&p.node, "node", "", "name of the Node; by default the running kube-proxy's, the hostnameOverride of its file, or the host name")
	flags.BoolVar(&collects, "collect", false, "read what other nodes printed with -o json, from files, or - for standard input")
	flags.BoolVar(&stay, "stay", false, "print, and wait until the process is told to end: for a DaemonSet, whose pods start again when they end")
	for _, name := range []string{"from-config", "kubeconfig", "manifests"} {
		_ = cmd.MarkFlagFilename(name)
	}
	cmd.MarkFlagsMutuallyExclusive("kubeconfig", "manifests")
	for _, name := range []string{"from-config", "kubeconfig", "manifests", "node", "stay"} {
		cmd.MarkFlagsMutuallyExclusive("collect", name)
	}
	return cmd
}

// errStop ends the preflight command with exitStop. It is not printed.
var errStop = errors.New("the swap would fail")

// level says what a finding means for the swap.
type level string

// The levels, from the best.
const (
	levelGo   level = "go"
	levelLook level = "look"
	levelStop level = "stop"
)

var levels = []level{levelGo, levelLook, levelStop}

func worse(a, b level) level { return levels[max(slices.Index(levels, a), slices.Index(levels, b))] }

// finding is something that was seen on a node.
type finding struct {
	Check string `json:"check"` // what was checked, such as node-ports
	Level level  `json:"level"`
	Seen  string `json:"seen"`          // what the node has
	Why   string `json:"why,omitempty"` // why it matters
	Do    string `json:"do,omitempty"`  // what to do
}

// Preflight is the answer of the preflight command on one node.
type Preflight struct {
	nodeDocument
	// Verdict is the worst level of the findings.
	Verdict level `json:"verdict"`
	// Mode: mode of the kube-proxy that serves the node now: iptables, ipvs, nftables or none
	Mode     string    `json:"mode"`
	Findings []finding `json:"findings"`
}

func (v *Preflight) worst() level { return v.Verdict }

func (v *Preflight) add(f finding) {
	v.Findings = append(v.Findings, f)
	v.Verdict = worse(v.Verdict, f.Level)
}

// Text implements View.
func (v *Preflight) Text(p *Page) {
	p.printf("%s: %s (mode now: %s)\n", v.nodeText(), p.bold(verdicts[v.Verdict]), v.Mode)
	for _, l := range slices.Backward(levels) {
		for _, f := range v.Findings {
			if f.Level == l {
				p.printf("\n")
				f.text(p, "")
			}
		}
	}
}

// verdicts are the levels for people.
var verdicts = map[level]string{levelGo: "go", levelLook: "look at the findings first", levelStop: "do not swap yet"}

func (f *finding) text(p *Page, nodes string) {
	mark := map[level]func(string) string{levelGo: p.good, levelLook: p.bold, levelStop: p.bad}[f.Level]
	p.printf("%s %s%s: %s\n", mark(fmt.Sprintf("%-4s", f.Level)), f.Check, nodes, f.Seen)
	for _, line := range [][2]string{{"why", f.Why}, {"do", f.Do}} {
		if line[1] != "" {
			p.printf("     %-4s %s\n", line[0]+":", line[1])
		}
	}
}

// preflight looks at a node. It asks the functions that the proxy's start asks: config.Parse and config.CheckMode what is
// wrong with the file, config.ProbeKernel what the kernel lacks, leftovers.Find what other modes left, and the compiler
// what it thinks of the Services. So preflight and the proxy cannot disagree. What no start asks is about the change from
// one proxy to the other: addresses, marks and chains that are served, set or kept now and not afterwards.
//
// Each check adds findings. A check may use what earlier checks found, such as the mode that serves the node.
type preflight struct {
	config, kubeconfig, manifests, node string

	ctx  context.Context
	conn *nft.Conn
	out  Preflight
	// check is the name of the check that runs, which its findings get.
	check string
	// err ends the checks.
	err error
	// running are the processes called kube-proxy.
	running    []runningProxy
	interfaces []describedInterface
	// others are the rules of other programs.
	others leftovers.Others
	// settings are nil if they are not known.
	settings *config.File
	// objects are nil if they are not known.
	objects *manifests.Objects
	// old is the mode that serves the node now; empty if nothing shows one.
	old v1alpha2.Mode
}

func (p *preflight) add(l level, seen, why, do string) { p.out.add(finding{p.check, l, seen, why, do}) }

// fine adds a finding that does not speak against the swap.
func (p *preflight) fine(seen, why, do string) { p.add(levelGo, seen, why, do) }

// look adds a finding to look at before the swap.
func (p *preflight) look(seen, why, do string) { p.add(levelLook, seen, why, do) }

// stop adds a finding with which the swap would fail.
func (p *preflight) stop(seen, why, do string) { p.add(levelStop, seen, why, do) }

// run makes all checks, in the order in which JSON has their findings.
func (p *preflight) run(ctx context.Context) (*Preflight, error) {
	p.ctx = ctx
	p.out = Preflight{
		nodeDocument: nodeDocument{document: documentOf("Preflight"), Node: p.node}, Verdict: levelGo, Findings: []finding{},
	}
	if p.conn, p.err = nft.Dial(nft.Config{}); p.err != nil {
		return nil, p.err
	}
	defer p.conn.Close()
	p.running = runningProxies()
	p.interfaces, p.err = interfaces()
	for _, c := range []struct {
		name string
		look func()
	}{
		{"config", p.checkConfig}, {"node", p.findNode}, {"running", p.checkRunning}, {"kernel", p.checkKernel}, {"tables", p.checkTables},
		{"leftovers", p.checkLeftovers}, {"ports", p.checkPorts}, {"mode", p.checkMode}, {"node-ports", p.checkNodePorts},
		{"ipvs", p.checkIPVS}, {"rules", p.checkRules}, {"mark", p.checkMark}, {"firewall", p.checkFirewall},
		{"neighbours", p.checkNeighbours}, {"detect-local", p.checkDetectLocal}, {"sysctls", p.checkSysctls},
		{"direct-return", p.checkDirectReturn}, {"services", p.checkServices},
	} {
		if p.err != nil {
			return nil, p.err
		}
		p.check = c.name
		c.look()
	}
	p.out.Mode = cmp.Or(string(p.old), "none")
	return &p.out, p.err
}

// findNode finds the Node's name, if --node does not give it, and loads the objects.
func (p *preflight) findNode() {
	if p.node == "" {
		p.out.Node, p.out.NodeSource = p.nodeName()
	}
	p.loadObjects()
}

// nodeName returns the name under which the running kube-proxy knows its Node, or else that of the file, or of the host.
func (p *preflight) nodeName() (name, from string) {
	if proxy, err := ruledump.RunningProxy(p.ctx, ruledump.ProxyAddress); err == nil {
		return proxy.Node, ruledump.NodeFromProxy
	}
	for _, r := range p.running {
		name = cmp.Or(name, r.hostname)
	}
	if p.settings != nil {
		name = cmp.Or(name, p.settings.Config.HostnameOverride)
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
		return name, ruledump.NodeFromProxy
	}
	name, _ = os.Hostname() // only shown, and the name of the Node in most clusters
	return name, ruledump.NodeFromHost
}

// fileKubeconfig returns the path by which this process can open the kubeconfig that the file names; empty for none.
func (p *preflight) fileKubeconfig() string {
	if p.settings == nil || p.settings.Config.ClientConnection.Kubeconfig == "" {
		return ""
	}
	path := p.settings.Config.ClientConnection.Kubeconfig
	if p.config == "" && filepath.IsAbs(path) {
		for _, r := range p.running {
			if r.config != "" {
				return filepath.Join("/proc", r.pid, "root", path)
			}
		}
	}
	return path
}

// loadOfFile loads the objects by the kubeconfig that the file names. A cluster that does not answer is no error, because
// the user did not ask for it.
func (p *preflight) loadOfFile(kubeconfig string) {
	ctx, cancel := context.WithTimeout(p.ctx, namesPatience)
	defer cancel()
	objects, err := ruledump.ClusterObjects(ctx, kubeconfig, p.out.Node)
	if err != nil {
		p.fine("the cluster was not looked at: clientConnection.kubeconfig: "+err.Error(), "", "give --kubeconfig and --node")
		return
	}
	p.objects = objects
}

func (p *preflight) loadObjects() {
	switch file := p.fileKubeconfig(); {
	case p.kubeconfig != "":
		p.objects, p.err = ruledump.ClusterObjects(p.ctx, p.kubeconfig, p.out.Node)
	case p.manifests != "":
		p.objects = new(manifests.Objects)
		*p.objects, p.err = manifests.Load(p.manifests)
	case file != "":
		p.loadOfFile(file)
	}
}

// checkConfig reads the file of --from-config, or the file that a running kube-proxy names. A file that the proxy would
// refuse is a finding. A file of --from-config that cannot be read is an error, because the user meant it.
func (p *preflight) checkConfig() {
	path := p.config
	for _, r := range p.running {
		path = cmp.Or(path, r.configFile())
	}
	unknown := func(why string) {
		p.look("the settings of the kube-proxy are not known"+why, "findings may be missing, and masquerade bit 14 is assumed",
			"give its file: --from-config")
	}
	if path == "" {
		unknown("")
		return
	}
	data, err := os.ReadFile(path)
	switch {
	case err != nil && p.config != "":
		p.err = err
		return
	case err != nil:
		unknown(": " + err.Error())
		return
	}
	if p.settings, err = config.Parse(data); err != nil {
		p.stop(err.Error(), "the proxy would not start with this file", "correct the field that is named")
		return
	}
	for _, warning := range p.settings.Warnings {
		p.look(warning, "the proxy logs this at its start", "change the field, or go on if this is meant")
	}
	if err := config.CheckMode(p.settings.Config.Mode, nil); err != nil {
		p.stop(err.Error(), "the proxy would end with this error", "set mode to nftables in the file of the new proxy")
	}
}

// shownNames bounds the chains, addresses or Services that a finding names.
const shownNames = 5

// some lists the first values, and says how many more there are.
func some[T any](list []T, most int) string {
	var texts []string
	for _, v := range list[:min(len(list), most)] {
		texts = append(texts, fmt.Sprint(v))
	}
	text := strings.Join(texts, ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
