package evaluator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/nft"
)

// device is an interface on a packet's way. If it is a bridge, the packet comes in or leaves by its port, and filtered says
// that br_netfilter calls the hooks of IP at the port, before the bridge hands the packet up.
type device struct {
	ifname
	isBridge, filtered bool
	port               ifname
}

// device returns the interface on the way from or to an address.
func (w *walk) device(name ifname, addr netip.Addr) device {
	d := device{ifname: name}
	ports := w.ports[name.name]
	if len(ports) == 0 {
		return d
	}
	d.isBridge, d.filtered = true, slices.Contains(w.host.BridgeFilters, w.family)
	d.port.name = w.host.BridgePorts[addr]
	switch {
	case slices.Contains(ports, d.port.name):
	case len(ports) == 1:
		d.port.name = ports[0]
	default:
		d.port = ifname{unknown: fmt.Sprintf("the port of %s towards %s is not known", name.name, addr)}
	}
	return d
}

// half is a part of the chains of a hook of a bridge: br_netfilter calls the hooks of IP at priority 0.
type half int8

const (
	whole half = iota
	beforeIP
	behindIP
)

// stage is a hook that the device calls. in and out are its interfaces.
type stage struct {
	family  nft.Family
	hook    nft.Hook
	in, out ifname
	half    half
}

// arrival returns the stages before prerouting of IP.
func (d device) arrival() []stage {
	switch {
	case !d.isBridge:
		return []stage{{nft.FamilyNetdev, nft.HookIngress, d.ifname, ifname{}, whole}}
	case d.filtered:
		return []stage{{nft.FamilyNetdev, nft.HookIngress, d.port, ifname{}, whole}, {nft.FamilyBridge, nft.HookPrerouting, d.port, ifname{}, beforeIP}}
	}
	return []stage{
		{nft.FamilyNetdev, nft.HookIngress, d.port, ifname{}, whole}, {nft.FamilyBridge, nft.HookPrerouting, d.port, ifname{}, whole},
		{nft.FamilyBridge, nft.HookInput, d.port, ifname{}, whole}, {nft.FamilyNetdev, nft.HookIngress, d.ifname, ifname{}, whole},
	}
}

// handedUp returns the stages between prerouting of IP and the routing decision. There are some if br_netfilter has called
// prerouting at the port.
func (d device) handedUp() []stage {
	if !d.filtered {
		return nil
	}
	return []stage{
		{nft.FamilyBridge, nft.HookPrerouting, d.port, ifname{}, behindIP},
		{nft.FamilyBridge, nft.HookInput, d.port, ifname{}, whole}, {nft.FamilyNetdev, nft.HookIngress, d.ifname, ifname{}, whole},
	}
}

// departure returns the stages behind postrouting of IP.
func (d device) departure() []stage {
	stages := []stage{{nft.FamilyNetdev, nft.HookEgress, ifname{}, d.ifname, whole}}
	if d.isBridge {
		stages = append(stages, stage{nft.FamilyBridge, nft.HookOutput, ifname{}, d.port, whole},
			stage{nft.FamilyBridge, nft.HookPostrouting, ifname{}, d.port, whole}, stage{nft.FamilyNetdev, nft.HookEgress, ifname{}, d.port, whole})
	}
	return stages
}

// isBehind reports whether a host with the address may be behind the bridge.
func (w *walk) isBehind(bridge device, addr netip.Addr) bool {
	return slices.Contains(w.ports[bridge.name], w.host.BridgePorts[addr]) || w.best(mainTable, addr).Interface == bridge.name
}

// forwardTranslated walks a packet whose destination a rule has changed, behind prerouting at a port of a bridge. Whatever
// Ethernet address the packet was sent to, br_netfilter asks the routes, and has the bridge forward what they send back to
// the bridge (br_nf_pre_routing_finish).
func (w *walk) forwardTranslated(in device) (bool, error) {
	d := w.decide(w.destination.Addr())
	if d.Interface == in.name && d.unknown == "" && (d.failure == "" || d.failure == ForwardingOff) { // a bridge need not forward IP
		return w.bridge(in)
	}
	if !w.obeys(d) {
		return false, nil
	}
	w.leaveBy(d.Route)
	return w.forwardRouted(in)
}

// bridgeOrForward walks a packet to another host behind the bridge that it came in by, behind prerouting. If the sender has
// sent it to the Ethernet address of this host, the bridge forwards it, and no route and no policy of IPsec counts. If it has
// sent it to the bridge's address, as pods do to which all others are beyond a gateway, the node routes it.
func (w *walk) bridgeOrForward(in device) (bool, error) {
	ways := []func() (bool, error){func() (bool, error) { return w.bridge(in) }, func() (bool, error) { return w.forward(in) }}
	chosen, matters, err := w.choose(nil, ways)
	if err != nil {
		return false, err
	}
	if matters {
		verdict := [...]string{"if the packet was sent to the Ethernet address of its destination", "if the packet was sent to the Ethernet address of " + in.name}
		w.dependsOn(Step{Kind: StepBridge, Hook: w.hook, Verdict: verdict[chosen]})
	}
	return ways[chosen]()
}

// bridge walks a packet that the bridge forwards, behind prerouting. br_netfilter calls the hooks of IP, with the bridge as
// both interfaces.
func (w *walk) bridge(in device) (bool, error) {
	w.oif = in.ifname
	out := w.device(w.oif, w.destination.Addr())
	w.note("routing: bridged")
	if on, err := w.pass(stage{nft.FamilyBridge, nft.HookPrerouting, in.port, ifname{}, behindIP}); !on {
		return false, err
	}
	if in.port == out.port && slices.Contains(w.host.NoHairpin, in.port.name) {
		w.note("bridge: " + in.port.name + " is without hairpin mode, so the packet does not go back")
		return false, nil
	}
	if on, err := w.pass(stage{nft.FamilyBridge, nft.HookForward, in.port, out.port, beforeIP}); !on {
		return false, err
	}
	if on, err := w.traverse(nft.HookForward); !on {
		return false, err
	}
	if on, err := w.pass(stage{nft.FamilyBridge, nft.HookForward, in.port, out.port, behindIP}, stage{nft.FamilyBridge, nft.HookPostrouting, ifname{}, out.port, whole}); !on {
		return false, err
	}
	if on, err := w.traverse(nft.HookPostrouting); !on {
		return false, err
	}
	on, err := w.pass(stage{nft.FamilyNetdev, nft.HookEgress, ifname{}, out.port, whole})
	if on {
		w.fate.Interface = w.oif.name
	}
	return on, err
}

// pass runs the chains of the stages. It reports whether the packet continues.
func (w *walk) pass(stages ...stage) (bool, error) {
	for _, s := range stages {
		chains := w.chainsOf(s)
		if len(chains) == 0 {
			continue
		}
		iif, oif := w.iif, w.oif
		w.hook = nft.Hook(s.family.String() + " " + string(s.hook))
		w.iif, w.oif, w.atDevice = s.in, s.out, true
		on, err := w.runHook(chains)
		if w.iif, w.oif, w.atDevice = iif, oif, false; !on || err != nil {
			return false, err
		}
	}
	return true, nil
}

// chainsOf returns the chains that a packet meets at a stage. If the packet's device is not known, it may or may not meet
// the chains of family netdev.
func (w *walk) chainsOf(s stage) (chains []baseChain) {
	at := s.in
	if s.hook == nft.HookEgress || s.hook == nft.HookOutput || s.hook == nft.HookPostrouting {
		at = s.out
	}
	for _, c := range w.hooks[hookKey{s.family, s.hook}] {
		switch {
		case s.half == beforeIP && c.chain.Priority >= 0, s.half == behindIP && c.chain.Priority < 0:
			continue
		case s.family == nft.FamilyNetdev && at.unknown == "" && !w.belongs(c, at.name):
			continue
		case s.family == nft.FamilyNetdev:
			c.maybe = at.unknown != ""
		}
		chains = append(chains, c)
	}
	return chains
}

// belongs reports whether a device calls the chain.
func (w *walk) belongs(c baseChain, name string) bool {
	devices := c.Kernel.Devices[c.chain.Name]
	w.statements += 1 + len(devices)
	return slices.ContainsFunc(devices, func(device string) bool {
		prefix, isPrefix := strings.CutSuffix(device, "*")
		return device == name || isPrefix && strings.HasPrefix(name, prefix)
	})
}
