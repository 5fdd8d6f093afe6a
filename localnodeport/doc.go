// Package localnodeport serves node ports on the node's loopback addresses, for programs on
// the node that dial 127.0.0.1 or ::1, such as a container runtime that pulls from a registry
// in the cluster (KEP-6032).
//
// No rule can do that without the sysctl route_localnet, which opens loopback addresses
// to the network (CVE-2020-8558), and for IPv6 there is not even that. So a listener accepts each
// connection and copies bytes to an endpoint and back. The kernel does the copying
// (splice), but every byte still crosses this process: it is for a few local clients,
// and only for TCP. Nobody listens for UDP and SCTP, so the kernel refuses them.
//
// What differs from other node ports: the endpoint sees a connection from the node;
// connections end with this process; affinity is forgotten when it restarts.
package localnodeport
