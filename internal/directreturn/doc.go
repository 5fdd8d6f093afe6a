// Package directreturn plans direct return in the table of one IP family (docs/direct-return.md). The compiler asks it: a
// Planner takes the Service ports that ask, and who owns each external address, and writes its own sets and chains.
//
// A frontend has slots, and each slot has one endpoint, the same on all nodes. The hash of a client's address and port
// chooses the slot. Each node sends a packet, as it is, to where its routes lead to the slot's endpoint. The endpoint's own
// node translates it and keeps the source, so the answer goes straight to the client. Only that node's conntrack knows the
// connection: other nodes may go, and a router may choose another one. With session affinity the hash is that of the
// address alone, and the numbers of its slots follow the others.
//
// TCP connections outlive a move of their slot. A node may own the slot of a TCP packet that opens no connection, and not
// know the packet's connection. Then it forwards the packet to the endpoints with the next scores for the slot: if the slot
// has moved, one of these endpoints owned it before. The node of this endpoint knows the connection, and the others drop the
// packet. A datagram does not say whether it opens a flow, so flows of UDP and SCTP move with their slot.
//
// The TTL says how often a packet was forwarded. A node forwards what comes from outside, and asks other endpoints about
// what a node has forwarded, with a smaller TTL. The kernel's dup makes 255 of a TTL of 0: without these rules two nodes
// with different lists of endpoints, or a route that leads back, would forward a packet for ever.
//
// The chains of a table run before all others. Packets of clients of the cluster, and of slots whose endpoint has no known
// node, go on as under policy Cluster.
package directreturn
