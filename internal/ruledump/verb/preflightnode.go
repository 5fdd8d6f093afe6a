package verb

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/component-base/featuregate"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// runningProxy is a process called kube-proxy in this network namespace.
type runningProxy struct {
	pid  string
	args []string
	// config and mode are the values of flags; empty if they are not there.
	config, mode, hostname string
}

// runningProxies finds the processes in /proc. A container's /proc does not show processes outside of it.
func runningProxies() (found []runningProxy) {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return nil
	}
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
	for _, dir := range processes {
		line, err := os.ReadFile(dir + "/cmdline")
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if err != nil || filepath.Base(args[0]) != "kube-proxy" {
			continue
		}
		if namespace, err := os.Readlink(dir + "/ns/net"); err != nil || namespace != own {
			continue
		}
		r := runningProxy{pid: filepath.Base(dir), args: args[1:]}
		flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
		flags.ParseErrorsAllowlist.UnknownFlags = true
		flags.StringVar(&r.config, "config", "", "")
		flags.StringVar(&r.mode, "proxy-mode", "", "")
		flags.StringVar(&r.hostname, "hostname-override", "", "")
		_ = flags.Parse(r.args) // it runs, so what it needs of them is valid
		found = append(found, r)
	}
	return found
}

// configFile returns a path by which this process can open the process's configuration file; empty for none.
func (r *runningProxy) configFile() string {
	switch {
	case r.config == "":
		return ""
	case filepath.IsAbs(r.config):
		return filepath.Join("/proc", r.pid, "root", r.config)
	}
	return "/proc/" + r.pid + "/cwd/" + r.config // as it is: ".." must not leave the process's directory by name
}

func (p *preflight) checkRunning() {
	for _, r := range p.running {
		p.old = cmp.Or(p.old, v1alpha2.Mode(r.mode))
		p.fine(fmt.Sprintf("kube-proxy runs, process %s: %s", r.pid, strings.Join(r.args, " ")), "",
			"the swap has to end it: two proxies undo each other's rules")
	}
	if len(p.running) > 1 {
		p.look(fmt.Sprintf("%d processes called kube-proxy share this network namespace", len(p.running)),
			"two proxies undo each other's rules", "end all but one")
	}
}

func (p *preflight) checkKernel() {
	families := nft.Families[:]
	if !(sysctl.Tree{}).KernelHasIPv6() {
		families = families[:1]
	}
	var name unix.Utsname
	_ = unix.Uname(&name) // it cannot fail
	kernel := "Linux " + unix.ByteSliceToString(name.Release[:])
	err := config.ProbeKernel(p.ctx, p.conn, families, p.gates())
	switch missing := (nft.MissingError)(nil); {
	case err == nil:
		p.fine(kernel+" has every feature that the proxy asks for", "", "")
	case errors.As(err, &missing):
		p.stop(kernel+": "+oneLine(err), "the proxy would name the same at its start, and end",
			"load the module, or boot a kernel that has the option")
	default:
		p.err = err
	}
}

// gates returns the feature gates of the settings; the defaults if the settings are not known.
func (p *preflight) gates() featuregate.FeatureGate {
	var set map[string]bool
	if p.settings != nil {
		set = p.settings.Config.FeatureGates
	}
	gates, _, _ := config.FeatureGates(set)
	return gates
}

// oneLine returns the text of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// checkTables looks for tables of the proxy's names.
func (p *preflight) checkTables() {
	for _, family := range nft.Families {
		header, err := p.conn.ReadHeader(p.ctx, family, compiler.TableName)
		if err != nil || header == nil {
			continue // a kernel without IPv6 refuses to answer
		}
		p.old = cmp.Or(p.old, v1alpha2.ModeNFTables)
		name := fmt.Sprintf("table %s %s exists", family, compiler.TableName)
		if owner := header.Kernel.OwnerPort; header.Owner && owner != 0 {
			p.stop(fmt.Sprintf("%s and belongs to process %d", name, owner),
				"nobody else can change it while that process runs",
				"end that process: the tables stay, if they have the flag persist")
			continue
		}
		p.fine(name+": a proxy in nftables mode wrote it",
			"one transaction replaces its content; established connections do not notice", "")
	}
}

// Paths that tests replace.
var xtablesLock, cniDir = leftovers.LockFile, leftovers.CNIDir

func (p *preflight) checkLeftovers() {
	found, err := leftovers.Find(p.ctx)
	if err != nil {
		p.look(oneLine(err), "the proxy could not find or remove rules of another mode there either",
			"run preflight as root on the host, and mount what is missing into the proxy's pod")
	}
	kinds := map[leftovers.Kind]bool{}
	for _, l := range found {
		kinds[l.Kind] = true
		p.old = v1alpha2.ModeIPTables
		why := "the proxy removes them after its first sync, unless --leftovers=report"
		if l.Kind == leftovers.IPVS {
			why = "the proxy removes what mode ipvs left after its first sync, unless --leftovers=report; established " +
				"connections keep it for an hour at most (--leftovers-drain-timeout)"
		}
		p.fine(fmt.Sprintf("%s: %d, for example %s", l.Kind, l.Count, l.Example), why, "")
	}
	if kinds[leftovers.IPVS] {
		p.old = v1alpha2.ModeIPVS
	}
	if _, err := os.Stat(xtablesLock); kinds[leftovers.Legacy] && err != nil {
		p.look("there is no "+leftovers.LockFile, "without the lock of the iptables programs the proxy changes nothing of iptables-legacy",
			"mount the host's file into the pods of the proxy and of preflight (hostPath, type FileOrCreate)")
	}
	if kinds[leftovers.NFT] && kinds[leftovers.Legacy] {
		p.look("rules of kube-proxy in both variants of iptables", "those of one variant are stale, and serve deleted Services",
			"nothing for the swap: the proxy removes both")
	}
}

// checkMode compares the settings with what serves the node.
func (p *preflight) checkMode() {
	if p.settings == nil {
		return
	}
	set := p.settings.KubeProxyMode
	if p.old != "" && p.old != set {
		p.look(fmt.Sprintf("the settings mean mode %s, and the node has rules of mode %s", set, p.old),
			"the file may not be that of this node's kube-proxy, or an older mode left its rules",
			"see which file this node's kube-proxy reads")
	}
	p.old = cmp.Or(p.old, set)
	if p.old == v1alpha2.ModeIPTables {
		p.fine("mode iptables drops forwarded packets that connection tracking calls invalid; mode nftables does not",
			"a late packet can then reach a client untranslated, and reset its connection",
			"if connections are reset after the swap: conntrack.tcpBeLiberal")
	}
}

// readSysctl returns the value of a sysctl; -1 if there is none.
func readSysctl(name string) int {
	text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return -1
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return value
}

func (p *preflight) checkSysctls() {
	if p.settings != nil {
		c := (*kubeproxyv1alpha1.KubeProxyConntrackConfiguration)(&p.settings.Config.Linux.Conntrack)
		if changes := (sysctl.Tree{}).ConntrackChanges(c); len(changes) > 0 {
			p.fine("the proxy sets "+strings.Join(changes, ", "), "",
				"it needs a writable /proc/sys for that, as kube-proxy does")
		}
	}
	if readSysctl("net.ipv4.ip_forward") == 0 {
		p.look("net.ipv4.ip_forward is 0", "packets of other machines and of pods go to no endpoint on another machine",
			"the program that sets up the node has to set it to 1")
	}
	if readSysctl("net.ipv4.conf.all.route_localnet") == 1 {
		p.fine("net.ipv4.conf.all.route_localnet is 1, as mode iptables sets it",
			"other machines on the link can reach services on 127.0.0.1 (CVE-2020-8558); the proxy neither needs nor resets it",
			"set it to 0 after the swap, unless the CNI plugin portmap maps host ports on 127.0.0.1")
	}
	if p.old == v1alpha2.ModeIPVS && readSysctl("net.ipv4.conf.all.arp_ignore") == 1 {
		p.fine("net.ipv4.conf.all.arp_ignore is 1, as ipvs.strictARP sets it", "nothing resets it",
			"set arp_ignore and arp_announce to 0 after the swap if nobody else wants them")
	}
	if readSysctl("net.bridge.bridge-nf-call-iptables") == 1 {
		return
	}
	if bridge := p.podBridge(); bridge != "" {
		p.look("net.bridge.bridge-nf-call-iptables is not 1, and the pods are on the bridge "+bridge,
			"answers between two pods on the bridge are not translated back, in any mode of kube-proxy",
			"load the module br_netfilter and set it to 1")
	}
}

// podNetworks returns the cluster's ranges, if the settings have some.
func (p *preflight) podNetworks() []netip.Prefix {
	if p.settings == nil {
		return nil
	}
	return config.ParseCIDRs(p.settings.Config.DetectLocal.ClusterCIDRs)
}

// podBridge returns the name of a bridge with an address in the cluster's ranges; empty if there is none.
func (p *preflight) podBridge() string {
	pods := p.podNetworks()
	for _, i := range p.interfaces {
		if slices.ContainsFunc(i.Addresses, func(a netip.Prefix) bool { return slices.ContainsFunc(pods, a.Overlaps) }) {
			if link, err := netlink.LinkByName(i.Name); err == nil && link.Type() == "bridge" {
				return i.Name
			}
		}
	}
	return ""
}

// checkDetectLocal looks whether the settings fit the node's interfaces and routes.
func (p *preflight) checkDetectLocal() {
	if p.settings == nil || p.settings.Config.DetectLocalMode == v1alpha2.LocalModeClusterCIDR && len(p.podNetworks()) == 0 { // a warning of the settings
		return
	}
	c := p.settings.Config
	problem := ""
	if c.DetectLocalMode == v1alpha2.LocalModeNodeCIDR {
		node := p.nodeObject()
		if node == nil {
			p.fine(string(c.DetectLocalMode)+": the Node was not looked at; it needs spec.podCIDRs", "", "")
			return
		}
		if len(tracker.ParseNode(node).PodCIDRs) == 0 {
			problem = "the Node " + node.Name + " has no spec.podCIDRs"
		}
	} else {
		n := config.NodeNetwork{LeadsInto: nodeaddr.LeadsInto}
		for _, i := range p.interfaces {
			n.Interfaces = append(n.Interfaces, i.Name)
			for _, a := range i.Addresses {
				n.Addresses = append(n.Addresses, a.Addr())
			}
		}
		problem, _ = config.DetectLocalProblem(config.DetectLocal(c), n) // without routes nothing is known
	}
	if problem == "" {
		p.fine(string(c.DetectLocalMode)+": fits this node", "", "")
		return
	}
	p.look(string(c.DetectLocalMode)+": "+problem,
		"pods would be taken for clients outside of the cluster: masqueraded, and refused under policy Local",
		"correct detectLocal for this node, or go on if its pods are still to come")
}

// checkPorts looks for programs that listen where the proxy serves its health and its metrics.
func (p *preflight) checkPorts() {
	addresses := []string{fmt.Sprintf(":%d", v1alpha2.HealthzPort), fmt.Sprintf(":%d", v1alpha2.MetricsPort)}
	if p.settings != nil {
		addresses = []string{p.settings.Config.HealthzBindAddress, p.settings.Config.MetricsBindAddress}
	}
	taken := listeningPorts()
	var found []string
	for _, a := range addresses {
		if _, port, err := net.SplitHostPort(a); err == nil && taken[port] {
			found = append(found, port)
		}
	}
	switch ports := strings.Join(found, " and "); {
	case ports == "":
	case p.old == "" && len(p.running) == 0:
		p.look("a program that is no kube-proxy listens at port "+ports,
			"the proxy ends there, or with bindAddressHardFail: false tries again for ever",
			"end that program, or set healthzBindAddress and metricsBindAddress")
	default:
		p.fine("a program listens at port "+ports, "", "the old kube-proxy has to end before the new one starts")
	}
}

// listeningPorts returns the TCP ports at which programs listen in this network namespace.
func listeningPorts() map[string]bool {
	const listening = "0A" // TCP_LISTEN
	ports := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile("/proc/thread-self/net/" + name) // empty for a kernel without IPv6
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // number, local address, remote address, state
			if len(fields) < 4 || fields[3] != listening {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			if port, err := strconv.ParseUint(hex, 16, 16); err == nil {
				ports[strconv.FormatUint(port, 10)] = true
			}
		}
	}
	return ports
}
