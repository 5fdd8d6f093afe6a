// Package leftovers finds what kube-proxy's other modes, iptables and ipvs, left on a node, and removes
// what can be removed safely.
//
// An image swap from the mode iptables leaves its rules in the kernel. They go on sending connections to Services
// that were changed or deleted since, and nothing else shows it. kube-proxy removes them when it starts in another mode.
//
// Three places are looked at, each without running a program: the nf_tables tables that iptables-nft
// makes (over netlink), the tables of iptables-legacy (over getsockopt), and the device kube-ipvs0.
package leftovers
