// Package flows says in YAML what must become of packets, and sends them to find out.
//
// A flow file lists flows. Each names who sends where, and what must come of it:
//
//	flows:
//	- name: a pod reaches every ready endpoint
//	  from: client
//	  to: 10.96.0.10:80
//	  expect:
//	    endpoints: [10.244.1.5:8080, 10.244.2.6:8080]
//	    source: kept
//	- name: a port that the Service does not have is refused
//	  from: outside
//	  to: "[fd00:10:96::10]:81"
//	  protocol: UDP
//	  expect:
//	    result: refused
//
// [Parse] reads the file, for whoever wants to judge it: a program that walks packets through rules in
// memory ([Flow.Packet]), or a [Runner], which sends them for real through the node under test of a [lab.Lab].
package flows

import (
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// Flow is a connection, or an exchange of datagrams, from one sender to one address, with the expected result.
type Flow struct {
	// Name says in a sentence what the flow shows. It is unique in its file.
	Name string
	// From is the sender.
	From Origin
	// To is the address that the sender dials. The port is 0 for ICMP.
	To netip.AddrPort
	// Protocol is the protocol of the packets.
	Protocol Protocol
	// Port is the source port of the flow, which then is one connection; with a port that an earlier flow had, it is of
	// the same socket for the kernel. 0 makes several connections, each with a port that no other has.
	Port uint16
	// Expect is the expected result.
	Expect Expectation
}

// Origin is a sender: one of the constants, or an IP address in the lab.
type Origin string

// The senders that every lab has.
const (
	// FromClient is a pod on the node under test.
	FromClient Origin = "client"
	// FromNode is a process on the node under test that leaves its source address to the kernel.
	FromNode Origin = "node"
	// FromOutside and FromOutside2 are two addresses of a host outside the cluster.
	FromOutside  Origin = "outside"
	FromOutside2 Origin = "outside2"
	// FromRemote is a process on the other node.
	FromRemote Origin = "remote"
)

// origins has the addresses of the named senders.
var origins = map[Origin]lab.Addrs{
	FromClient:   lab.ClientAddrs,
	FromNode:     lab.NodeAddrs,
	FromOutside:  lab.OutsideAddrs,
	FromOutside2: lab.SecondOutsideAddrs,
	FromRemote:   lab.RemoteAddrs,
}

// Addr returns the source address of packets from o to an address like to, the zero Addr
// when o is none. A node that sends to itself starts from the address it sends to.
func (o Origin) Addr(to netip.Addr) netip.Addr {
	if addrs, ok := origins[o]; ok {
		if o == FromNode && isNode(to) {
			return to
		}
		return addrs.Like(to)
	}
	addr, _ := netip.ParseAddr(string(o))
	return addr
}

// isNode reports whether addr is one of the node under test.
func isNode(addr netip.Addr) bool {
	return addr.IsLoopback() || addr == lab.NodeAddrs.Like(addr) || addr == lab.GatewayAddrs.Like(addr)
}

// Protocol is the protocol of a flow.
type Protocol string

// The protocols. ICMP is an echo request, of ICMPv6 when the address says so.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
	ICMP Protocol = "ICMP"
)

// Expectation is the expected result of a flow: either it reaches Endpoints, or it has Result.
type Expectation struct {
	// Endpoints are the endpoints that connections must reach: each at least once, and no other ever.
	Endpoints []netip.AddrPort
	// Sticky turns that around: all connections of the sender must end at the same one of them.
	Sticky bool
	// As is the name of an earlier flow, with which Sticky shares its endpoint; empty for none.
	As string
	// Source is the source address that the endpoint must see. An endpoint that is the sender
	// itself must always see a masqueraded one, whatever Source says.
	Source Source
	// Result is the result of a flow that reaches no endpoint; empty if Endpoints is set.
	Result Result
}

// Source is kept or masqueraded. The zero value accepts both.
type Source string

// The sources.
const (
	// Kept means that the endpoint sees the sender's address.
	Kept Source = "kept"
	// Masqueraded means that it sees an address of the node under test instead. If that node
	// is the sender as well, the two differ only towards its own pods; see [lab.GatewayAddrs].
	Masqueraded Source = "masqueraded"
)

// Result is the result of a flow that no endpoint serves.
type Result string

// The results.
const (
	// Refused means that an ICMP port unreachable comes back.
	Refused Result = "refused"
	// Dropped means that nothing comes back.
	Dropped Result = "dropped"
	// Untouched means that it arrives at the very address and port, from the very address
	// and port, as if there were no rules.
	Untouched Result = "untouched"
)
