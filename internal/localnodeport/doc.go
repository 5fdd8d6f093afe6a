// Package localnodeport serves node ports on the node's loopback addresses (KEP-6032). It is for
// programs on the node that dial 127.0.0.1 or ::1, such as a container runtime that pulls from a
// registry in the cluster.
//
// No rule can do that without the sysctl route_localnet, which opens loopback addresses to the
// network (CVE-2020-8558). For IPv6 there is no such sysctl. So a listener accepts each connection
// and copies bytes to an endpoint and back. The kernel does the copying (splice), but every byte
// passes through this process. It is meant for a few local clients, and for TCP only: nobody
// listens for UDP and SCTP, so the kernel refuses them.
//
// Three things differ from other node ports. The endpoint sees a connection from the node.
// Connections end with this process. Session affinity does not survive a restart.
package localnodeport
