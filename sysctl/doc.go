// Package sysctl sets the kernel parameters of a node that kube-proxy sets: those of connection
// tracking, and the OOM score of the process.
//
// It sets nothing else. The nftables mode needs neither route_localnet (which makes 127.0.0.1
// reachable from outside, CVE-2020-8558) nor the parameters of IPVS. ip_forward and
// bridge-nf-call-iptables belong to the program that sets up the node.
package sysctl
