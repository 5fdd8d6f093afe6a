package main

import (
	"fmt"
	"strings"

	"github.com/nftproxy/nftproxy/model"
)

// chainPerServiceBase is the part that the layout has once: base chains with the lookups that a packet passes in them.
// The verbs are the chains of Services and the elements of service-ips.
const chainPerServiceBase = `table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { %[3]s } }
	set nodeport-ips { type ipv4_addr; elements = { 172.31.0.1 } }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
%[1]s
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %[2]s } }
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain cluster-ips-check {
		ip daddr @cluster-ips reject
		ip daddr { 10.96.0.0/12 } drop
	}
	chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-input {
		type filter hook input priority -110
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-forward {
		type filter hook forward priority -110
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority -110
		ct state new jump service-endpoints-check
		ct state new jump firewall-check
	}
	chain filter-output-post-dnat { type filter hook output priority -90; ct state new jump cluster-ips-check; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
`

// chainPerService returns a ruleset in the layout of kube-proxy's nftables mode: a chain for each Service,
// which draws a chain for each of its endpoints.
func chainPerService(changes *model.Changes) string {
	var services, addresses, chains strings.Builder
	for _, p := range changes.Ports {
		service := "service-" + p.ID.Service
		fmt.Fprintf(&services, "%s . udp . %d : goto %s,\n", p.ClusterIP, p.Port, service)
		fmt.Fprintf(&addresses, "%s,\n", p.ClusterIP)
		var draws []string
		for i, e := range p.Cluster {
			endpoint := fmt.Sprintf("endpoint-%s-%d", p.ID.Service, i)
			fmt.Fprintf(&chains, "chain %s {\nip saddr %s jump mark-for-masquerade\nmeta l4proto udp dnat to %s\n}\n", endpoint, e.AddrPort.Addr(), e.AddrPort)
			draws = append(draws, fmt.Sprintf("%d : goto %s", i, endpoint))
		}
		fmt.Fprintf(&chains, "chain %s {\nip daddr %s udp dport %d ip saddr != %s jump mark-for-masquerade\nnumgen random mod %d vmap { %s }\n}\n",
			service, p.ClusterIP, p.Port, clusterCIDR, len(draws), strings.Join(draws, ", "))
	}
	return fmt.Sprintf(chainPerServiceBase, chains.String(), services.String(), addresses.String())
}
