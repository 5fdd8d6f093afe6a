// Package sysctl sets the kernel parameters of a node that kube-proxy sets: those of
// connection tracking, and the process's own OOM score.
//
// It sets nothing else. kube-proxy's nftables mode needs neither route_localnet (which
// makes 127.0.0.1 reachable from outside, CVE-2020-8558) nor the ones of IPVS, and leaves
// ip_forward and bridge-nf-call-iptables to whoever sets the node up.
package sysctl
