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
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// runningProxy is a process called kube-proxy in this network namespace.
type runningProxy struct {
	pid  string
	args []string
}

// runningProxies finds them in /proc. Processes that it does not show, such as those outside of a container, are not
// found.
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
		if namespace, err := os.Readlink(dir + "/ns/net"); err == nil && namespace == own {
			found = append(found, runningProxy{filepath.Base(dir), args[1:]})
		}
	}
	return found
}

// flag returns the value of a flag of the command line; empty if it is not there.
func (r *runningProxy) flag(name string) string {
	for i, arg := range r.args {
		flag, value, is := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if flag == name && !is && i+1 < len(r.args) {
			value = r.args[i+1]
		}
		if flag == name {
			return value
		}
	}
	return ""
}

// configFile returns the path of the process's configuration file, as this process can open it.
func (r *runningProxy) configFile() string {
	if path := r.flag("config"); path != "" {
		return filepath.Join("/proc", r.pid, "root", path)
	}
	return ""
}

func (p *preflight) checkRunning() {
	for _, r := range p.running {
		p.old = cmp.Or(p.old, v1alpha2.Mode(r.flag("proxy-mode")))
		p.out.add("running", levelGo, fmt.Sprintf("kube-proxy runs, process %s: %s", r.pid, strings.Join(r.args, " ")), "",
			"the swap has to end it: two proxies undo each other's rules")
	}
	if len(p.running) > 1 {
		p.out.add("running", levelLook, fmt.Sprintf("%d processes called kube-proxy share this network namespace", len(p.running)),
			"two proxies undo each other's rules", "end all but one")
	}
}

func (p *preflight) checkKernel() error {
	families := nft.Families[:]
	if !(sysctl.Tree{}).KernelHasIPv6() {
		families = families[:1]
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	release := unix.ByteSliceToString(name.Release[:])
	probes := []error{p.conn.Probe(p.ctx, families...)}
	if p.settings != nil {
		gates, _, _ := config.FeatureGates(p.settings.Config.FeatureGates)
		if gates.Enabled(config.OwnTables) {
			probes = append(probes, p.conn.ProbePersist(p.ctx))
		}
		if gates.Enabled(config.ServiceCounters) {
			probes = append(probes, p.conn.ProbeCounters(p.ctx))
		}
	}
	err := errors.Join(probes...)
	if missing := (nft.MissingError)(nil); err != nil && !errors.As(err, &missing) {
		return err
	}
	if err != nil {
		p.out.add("kernel", levelStop, fmt.Sprintf("Linux %s: %s", release, strings.ReplaceAll(err.Error(), "\n", "; ")),
			"the proxy would name the same at its start, and end", "load the module, or boot a kernel that has the option")
		return nil
	}
	p.out.add("kernel", levelGo, fmt.Sprintf("Linux %s has every feature that the proxy asks for", release), "", "")
	return nil
}

// checkTables looks for tables of the proxy's names.
func (p *preflight) checkTables() error {
	for _, family := range nft.Families {
		header, err := p.conn.ReadHeader(p.ctx, family, compiler.TableName)
		if err != nil || header == nil {
			continue // a kernel without IPv6 refuses to answer
		}
		p.old = cmp.Or(p.old, v1alpha2.ModeNFTables)
		name := fmt.Sprintf("table %s %s exists", family, compiler.TableName)
		if owner := header.Kernel.OwnerPort; header.Owner && owner != 0 {
			p.out.add("tables", levelStop, fmt.Sprintf("%s and belongs to process %d", name, owner), "nobody else can change it while that process runs",
				"end that process: the tables stay, if they have the flag persist")
			continue
		}
		p.out.add("tables", levelGo, name+": a proxy in nftables mode wrote it", "one transaction replaces its content; established connections do not notice", "")
	}
	return nil
}

func (p *preflight) checkLeftovers() error {
	found, err := leftovers.Find(p.ctx)
	if err != nil {
		p.out.add("leftovers", levelLook, strings.ReplaceAll(err.Error(), "\n", "; "), "the proxy could not find or remove rules of another mode there either",
			"run preflight as root on the host, and mount what is missing into the proxy's pod")
	}
	var kinds []string
	for _, l := range found {
		kinds = append(kinds, string(l.Kind))
		if l.Kind == leftovers.IPVS {
			p.old = v1alpha2.ModeIPVS
		} else if p.old != v1alpha2.ModeIPVS {
			p.old = v1alpha2.ModeIPTables
		}
	}
	for _, l := range found {
		seen := fmt.Sprintf("%s: %d, for example %s", l.Kind, l.Count, l.Example)
		switch {
		case l.Kind == leftovers.IPVS:
			p.out.add("leftovers", levelGo, seen, "the proxy removes what mode ipvs left after its first sync, unless --leftovers=report; established "+
				"connections keep it for an hour at most (--leftovers-drain-timeout)", "")
		default:
			p.out.add("leftovers", levelGo, seen, "the proxy removes them after its first sync, unless --leftovers=report", "")
		}
	}
	if slices.Contains(kinds, string(leftovers.NFT)) && slices.Contains(kinds, string(leftovers.Legacy)) {
		p.out.add("leftovers", levelLook, "rules of kube-proxy in both variants of iptables", "those of one variant are stale, and serve deleted Services",
			"nothing for the swap: the proxy removes both")
	}
	return nil
}

// checkMode compares the settings with what serves the node.
func (p *preflight) checkMode() error {
	if p.settings == nil {
		return nil
	}
	set := p.settings.KubeProxyMode
	if p.old != "" && p.old != set {
		p.out.add("mode", levelLook, fmt.Sprintf("the settings mean mode %s, and the node has rules of mode %s", set, p.old), "the file may not be that of this node's kube-proxy, or an older mode left its rules",
			"see which file this node's kube-proxy reads")
	}
	p.old = cmp.Or(p.old, set)
	if p.old == v1alpha2.ModeIPTables {
		p.out.add("mode", levelGo, "mode iptables drops forwarded packets that connection tracking calls invalid; mode nftables does not", "a late packet can then reach a client untranslated, and reset its connection",
			"if connections are reset after the swap: conntrack.tcpBeLiberal")
	}
	return nil
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

func (p *preflight) checkSysctls() error {
	if p.settings != nil {
		changes := sysctl.Tree{}.ConntrackChanges((*kubeproxyv1alpha1.KubeProxyConntrackConfiguration)(&p.settings.Config.Linux.Conntrack))
		if len(changes) > 0 {
			p.out.add("sysctls", levelGo, "the proxy sets "+strings.Join(changes, ", "), "", "it needs a writable /proc/sys for that, as kube-proxy does")
		}
	}
	if readSysctl("net.ipv4.ip_forward") == 0 {
		p.out.add("sysctls", levelLook, "net.ipv4.ip_forward is 0", "packets of other machines and of pods go to no endpoint on another machine",
			"the program that sets up the node has to set it to 1")
	}
	if readSysctl("net.ipv4.conf.all.route_localnet") == 1 {
		p.out.add("sysctls", levelGo, "net.ipv4.conf.all.route_localnet is 1, as mode iptables sets it", "other machines on the link can reach services on 127.0.0.1 (CVE-2020-8558); the proxy neither needs nor resets it",
			"set it to 0 after the swap, unless the CNI plugin portmap maps host ports on 127.0.0.1")
	}
	if p.old == v1alpha2.ModeIPVS && readSysctl("net.ipv4.conf.all.arp_ignore") == 1 {
		p.out.add("sysctls", levelGo, "net.ipv4.conf.all.arp_ignore is 1, as ipvs.strictARP sets it", "nothing resets it", "set arp_ignore and arp_announce to 0 after the swap if nobody else wants them")
	}
	return p.checkBridges()
}

// podNetworks returns the cluster's ranges, if the settings have some.
func (p *preflight) podNetworks() (out []netip.Prefix) {
	if p.settings == nil {
		return nil
	}
	for _, text := range p.settings.Config.DetectLocal.ClusterCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}

// checkBridges looks for a bridge of pods whose packets pass no rules.
func (p *preflight) checkBridges() error {
	calls := readSysctl("net.bridge.bridge-nf-call-iptables")
	if calls == 1 {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	for _, link := range links {
		if link.Type() != "bridge" {
			continue
		}
		for _, prefix := range addressesOf(link.Attrs().Name) {
			if slices.ContainsFunc(p.podNetworks(), func(n netip.Prefix) bool { return n.Overlaps(prefix) }) {
				p.out.add("sysctls", levelLook, fmt.Sprintf("net.bridge.bridge-nf-call-iptables is not 1, and the pods are on the bridge %s", link.Attrs().Name),
					"answers between two pods on the bridge are not translated back, in any mode of kube-proxy", "load the module br_netfilter and set it to 1")
				return nil
			}
		}
	}
	return nil
}

// addressesOf returns the addresses of an interface with their networks.
func addressesOf(name string) (out []netip.Prefix) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	list, _ := i.Addrs() // none, if the interface has just gone
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}

// checkDetectLocal looks whether the settings fit the node's interfaces and routes.
func (p *preflight) checkDetectLocal() error {
	if p.settings == nil {
		return nil
	}
	c := p.settings.Config
	say := func(l level, seen string) {
		why, do := "", ""
		if l != levelGo {
			why = "pods would be taken for clients outside of the cluster: masqueraded, and refused under policy Local"
			do = "correct detectLocal for this node, or go on if its pods are still to come"
		}
		p.out.add("detect-local", l, fmt.Sprintf("%s: %s", c.DetectLocalMode, seen), why, do)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	has := func(match func(name string) bool) bool {
		return slices.ContainsFunc(interfaces, func(i net.Interface) bool { return match(i.Name) })
	}
	switch bridge, prefix := c.DetectLocal.BridgeInterface, c.DetectLocal.InterfaceNamePrefix; c.DetectLocalMode {
	case v1alpha2.LocalModeBridgeInterface:
		if !has(func(name string) bool { return name == bridge }) {
			say(levelLook, "there is no interface "+bridge)
			return nil
		}
	case v1alpha2.LocalModeInterfaceNamePrefix:
		if !has(func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			say(levelLook, "no interface begins with "+prefix)
			return nil
		}
	case v1alpha2.LocalModeNodeCIDR:
		node := p.nodeObject()
		if node == nil {
			say(levelGo, "the Node was not looked at; it needs spec.podCIDRs")
			return nil
		}
		if len(tracker.ParseNode(node).PodCIDRs) == 0 {
			say(levelLook, "the Node "+node.Name+" has no spec.podCIDRs")
			return nil
		}
	case v1alpha2.LocalModeClusterCIDR:
		for _, network := range p.podNetworks() {
			if !p.leadsInto(network) {
				say(levelLook, fmt.Sprintf("no route or address of this node is in %s", network))
				return nil
			}
		}
		if len(c.DetectLocal.ClusterCIDRs) == 0 {
			return nil // a warning of the settings
		}
	}
	say(levelGo, "fits this node")
	return nil
}

// leadsInto reports whether the node has an address in a network, or a route into it.
func (p *preflight) leadsInto(network netip.Prefix) bool {
	family := netlink.FAMILY_V4
	if network.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE) // of every table
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if r.Dst == nil {
			return false
		}
		to, err := netip.ParsePrefix(r.Dst.String())
		return err == nil && to.Bits() > 0 && to.Overlaps(network)
	})
}

// checkPorts looks for programs that listen where the proxy serves its health and its metrics.
func (p *preflight) checkPorts() error {
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
	switch {
	case len(found) == 0:
	case p.old == "" && len(p.running) == 0:
		p.out.add("ports", levelLook, "a program that is no kube-proxy listens at port "+strings.Join(found, " and "), "the proxy ends there, or with bindAddressHardFail: false tries again for ever",
			"end that program, or set healthzBindAddress and metricsBindAddress")
	default:
		p.out.add("ports", levelGo, "a program listens at port "+strings.Join(found, " and "), "", "the old kube-proxy has to end before the new one starts")
	}
	return nil
}

// listeningPorts returns the TCP ports at which programs listen in this network namespace.
func listeningPorts() map[string]bool {
	const listening = "0A" // TCP_LISTEN
	ports := map[string]bool{}
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		if err != nil {
			continue // a kernel without IPv6
		}
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
