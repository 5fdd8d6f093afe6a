package evaluator

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// deviceTables returns a chain without rules at each hook, of which one drops.
func deviceTables(drops string, devices ...string) []*nft.Table {
	all := map[nft.Family][]nft.Hook{
		nft.FamilyNetdev: {nft.HookIngress, nft.HookEgress},
		nft.FamilyBridge: {nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting},
		nft.FamilyIP:     {nft.HookPrerouting, nft.HookInput, nft.HookForward, nft.HookOutput, nft.HookPostrouting},
	}
	var tables []*nft.Table
	for _, family := range []nft.Family{nft.FamilyNetdev, nft.FamilyBridge, nft.FamilyIP} {
		t := &nft.Table{Family: family, Name: "t", Kernel: &nft.KernelTable{Other: true, Devices: map[string][]string{}}}
		for _, hook := range all[family] {
			for _, priority := range []int32{-1, 1} {
				name := fmt.Sprintf("%s%+d", hook, priority)
				t.Chains = append(t.Chains, &nft.Chain{Name: name, Type: nft.TypeFilter, Hook: hook, Priority: priority, DropPolicy: family.String()+" "+name == drops})
				t.Kernel.Devices[name] = devices
			}
		}
		tables = append(tables, t)
	}
	return tables
}

var deviceHost = Host{
	Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
	Routes: []Route{
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"},
		{Destination: netip.MustParsePrefix("10.244.1.0/24"), Interface: "cni0"},
	},
	Bridges:     map[string]string{"veth-1": "cni0", "veth-2": "cni0"},
	BridgePorts: map[netip.Addr]string{netip.MustParseAddr("10.244.1.1"): "veth-1", netip.MustParseAddr("10.244.1.2"): "veth-2"},
}

// A packet comes to the chains of its devices in the kernel's order.
func TestDevices(t *testing.T) {
	filters := []nft.Family{nft.FamilyIP}
	for _, tt := range []struct {
		name     string
		from, to string
		local    bool
		filters  []nft.Family
		devices  []string
		want     []string
	}{
		{"of another device are not met", "198.51.100.7", "203.0.113.1", false, nil, []string{"eth1"},
			[]string{"ip prerouting", "ip forward", "ip postrouting"}},
		{"are met by a name's beginning", "198.51.100.7", "203.0.113.1", false, nil, []string{"eth*"},
			[]string{"netdev ingress", "ip prerouting", "ip forward", "ip postrouting", "netdev egress"}},
		{"of a bridge and its port", "10.244.1.1", "203.0.113.1", false, nil, []string{"cni0", "veth-1"},
			[]string{"netdev ingress", "bridge prerouting", "bridge input", "netdev ingress", "ip prerouting", "ip forward", "ip postrouting"}},
		{"of a bridge and its port, with br_netfilter", "10.244.1.1", "203.0.113.1", false, filters, []string{"cni0", "veth-1"},
			[]string{"netdev ingress", "bridge prerouting", "ip prerouting", "bridge prerouting", "bridge input", "netdev ingress", "ip forward", "ip postrouting"}},
		{"of the same bridge, both ways", "10.244.1.1", "10.244.1.2", false, nil, []string{"veth-2"},
			[]string{"bridge prerouting", "bridge input", "ip prerouting", "ip forward", "ip postrouting", "bridge output", "bridge postrouting", "netdev egress"}},
		{"of the same bridge with br_netfilter, which forwards", "10.244.1.1", "10.244.1.2", false, filters, []string{"veth-2"},
			[]string{"bridge prerouting", "ip prerouting", "bridge prerouting", "bridge forward", "ip forward", "bridge forward", "bridge postrouting", "ip postrouting", "netdev egress"}},
		{"of the bridge to which the node sends", "192.168.0.1", "10.244.1.2", true, filters, []string{"cni0"},
			[]string{"ip output", "ip postrouting", "netdev egress", "bridge output", "bridge postrouting"}},
		{"of the bridge to the node", "10.244.1.1", "192.168.0.1", false, filters, nil,
			[]string{"bridge prerouting", "ip prerouting", "bridge prerouting", "bridge input", "ip input"}},
		{"of lo, both ways", "192.168.0.1", "192.168.0.1", true, filters, []string{"lo"},
			[]string{"ip output", "ip postrouting", "netdev egress", "netdev ingress", "ip prerouting", "ip input"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := deviceHost
			host.BridgeFilters = tt.filters
			fates, err := New(deviceTables("", tt.devices...), host).Fates(devicePacket(tt.from, tt.to, tt.local))
			if err != nil || len(fates) != 1 || len(fates[0].Depends) > 0 || fates[0].Result != Delivered {
				t.Fatal(err, fates)
			}
			var got []string
			for _, s := range fates[0].Path {
				if s.Table == nil {
					continue
				}
				name := s.Table.Family.String() + " " + string(s.Chain.Hook)
				if len(got) == 0 || got[len(got)-1] != name {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func devicePacket(from, to string, local bool) Packet {
	return Packet{
		Source: netip.AddrPortFrom(netip.MustParseAddr(from), 40000), Destination: netip.AddrPortFrom(netip.MustParseAddr(to), 80),
		Protocol: unix.IPPROTO_TCP, Local: local,
	}
}

// The Ethernet address to which a packet was sent decides whether the bridge that it came in by forwards it, or the node.
func TestBridgeOrNode(t *testing.T) {
	blocks := Policy{Direction: "fwd", Source: netip.MustParsePrefix("10.244.1.1/32"), Destination: netip.MustParsePrefix("0.0.0.0/0"), Block: true}
	translation := &Connection{Destination: netip.MustParseAddrPort("10.244.1.2:80")}
	for _, tt := range []struct {
		name, to   string
		connection *Connection
		policies   []Policy
		want       []string
	}{
		{"makes no difference", "10.244.1.2", nil, nil, []string{"delivered"}},
		{"makes a difference", "10.244.1.2", nil, []Policy{blocks}, []string{
			"delivered: if the packet was sent to the Ethernet address of its destination", "dropped: if the packet was sent to the Ethernet address of cni0"}},
		{"does not matter for a translated packet, which is bridged", "10.96.0.10", translation, []Policy{blocks}, []string{"delivered"}},
		{"does not matter for a packet that leaves by another interface", "203.0.113.1", nil, []Policy{blocks}, []string{"dropped"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := deviceHost
			host.BridgeFilters, host.Policies = []nft.Family{nft.FamilyIP}, tt.policies
			packet := devicePacket("10.244.1.1", tt.to, false)
			packet.Connection = tt.connection
			fates, err := New(deviceTables(""), host).Fates(packet)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range fates {
				text := f.Result.String()
				for _, d := range f.Depends {
					text += ": " + d.Verdict
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s\n%s", diff, fates)
			}
		})
	}
}

// Where the port of a bridge is not known, the fate depends on a chain that makes a difference.
func TestDeviceNotKnown(t *testing.T) {
	for drops, want := range map[string][]string{
		"":                    {"delivered"},
		"netdev ingress-1":    {"delivered: ingress-1 if the packet does not come by its devices", "dropped: ingress-1 if the packet comes by one of its devices"},
		"bridge prerouting-1": {"dropped"},
	} {
		fates, err := New(deviceTables(drops, "veth-1"), deviceHost).Fates(devicePacket("10.244.1.3", "203.0.113.1", false))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range fates {
			text := f.Result.String()
			for _, d := range f.Depends {
				text += ": " + d.Chain.Name + " " + d.Verdict
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q drops (-want +got):\n%s", drops, diff)
		}
	}
}

// Whether the order of two tables matters is found out at each device that shares their chains.
func TestDevicesShareChains(t *testing.T) {
	netdev := func(name string, drops bool, devices ...string) *nft.Table {
		return &nft.Table{
			Family: nft.FamilyNetdev, Name: name, Chains: []*nft.Chain{{Name: name, Type: nft.TypeFilter, Hook: nft.HookIngress, DropPolicy: drops}},
			Kernel: &nft.KernelTable{Other: true, Devices: map[string][]string{name: devices}},
		}
	}
	tables := []*nft.Table{netdev("drops", true, "cni0"), netdev("drops, too", true, "cni0"), netdev("both", false, "veth-1", "cni0"), netdev("first", false, "veth-1", "cni0")}
	fates, err := New(tables, deviceHost).Fates(devicePacket("10.244.1.1", "203.0.113.1", false))
	if err != nil {
		t.Fatal(err)
	}
	deciding := map[string]bool{}
	for _, f := range fates {
		deciding[f.Path[len(f.Path)-1].Chain.Name] = true
	}
	if len(deciding) != 2 {
		t.Errorf("dropped by %v, want both chains of the bridge:\n%s", deciding, fates)
	}
}

// A dump can have more chains than a kernel.
func TestDevicesOfManyTables(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second of processor time")
	}
	var tables []*nft.Table
	for i := range 50_000 {
		tables = append(tables, &nft.Table{
			Family: nft.FamilyIP, Name: fmt.Sprint(i), Kernel: &nft.KernelTable{Other: true},
			Chains: []*nft.Chain{{Name: "c", Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: 7}},
		})
	}
	_, err := New(tables, deviceHost).Fates(devicePacket("198.51.100.7", "203.0.113.1", false))
	if err == nil || !strings.Contains(err.Error(), "more than 256 tables have chains of the hook prerouting with priority 7") {
		t.Error(err)
	}
}
