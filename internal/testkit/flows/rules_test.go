package flows

import (
	"net/netip"
	"testing"
)

// handWritten is a Service in each family on port 80 of every protocol, and what a proxy does around it:
//
//	port 80  balances over three endpoints and masquerades pods that reach themselves
//	port 81  the same, masqueraded always
//	port 82  is refused, ICMP echoes as well
//	port 83  is dropped
//	port 84  ends at an endpoint that has no business there, every third time
//	port 85  sticks to one endpoint, by the client's address
//	port 86  is answered, but the answer is dropped
const handWritten = `
table ip proxy {
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain services {
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 3 map { 0 : 10.244.1.5, 1 : 10.244.2.6, 2 : 10.244.1.6 }:8080
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 81 meta mark set 1 dnat to numgen random mod 2 map { 0 : 10.244.1.5, 1 : 10.244.2.6 }:8080
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 84 dnat to numgen inc mod 3 map { 0 : 10.244.1.5, 1 : 10.244.2.6, 2 : 10.244.1.6 }:8080
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 85 dnat to jhash ip saddr mod 2 map { 0 : 10.244.1.5, 1 : 10.244.1.6 }:8080
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 86 dnat to 10.244.1.5:8081
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat
		meta mark 1 masquerade
		ip saddr . ip daddr { 10.244.1.5 . 10.244.1.5, 10.244.1.6 . 10.244.1.6 } masquerade
	}
	chain filter-forward { type filter hook forward priority filter; jump verdicts; }
	chain filter-output { type filter hook output priority filter; jump verdicts; }
	chain verdicts {
		ip daddr 10.96.0.10 meta l4proto icmp reject
		ip daddr 10.96.0.10 th dport 82 reject
		ip daddr 10.96.0.10 th dport 83 drop
		ct direction reply ct original ip daddr 10.96.0.10 th sport 8081 drop
	}
}
table ip6 proxy {
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain services {
		ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp, sctp } th dport 80 dnat to numgen random mod 3 map { 0 : fd00:10:244:1::5, 1 : fd00:10:244:2::6, 2 : fd00:10:244:1::6 }:8080
		ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp, sctp } th dport 81 meta mark set 1 dnat to numgen random mod 2 map { 0 : fd00:10:244:1::5, 1 : fd00:10:244:2::6 }:8080
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat
		meta mark 1 masquerade
		ip6 saddr . ip6 daddr { fd00:10:244:1::5 . fd00:10:244:1::5, fd00:10:244:1::6 . fd00:10:244:1::6 } masquerade
	}
	chain filter-forward { type filter hook forward priority filter; jump verdicts; }
	chain filter-output { type filter hook output priority filter; jump verdicts; }
	chain verdicts {
		ip6 daddr fd00:10:96::10 meta l4proto ipv6-icmp reject
		ip6 daddr fd00:10:96::10 th dport 82 reject
		ip6 daddr fd00:10:96::10 th dport 83 drop
	}
}
`

func addrPorts(texts ...string) []netip.AddrPort {
	parsed := make([]netip.AddrPort, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParseAddrPort(text)
	}
	return parsed
}

var (
	service4 = netip.MustParseAddr("10.96.0.10")
	service6 = netip.MustParseAddr("fd00:10:96::10")
	three4   = addrPorts("10.244.1.5:8080", "10.244.1.6:8080", "10.244.2.6:8080")
	three6   = addrPorts("[fd00:10:244:1::5]:8080", "[fd00:10:244:1::6]:8080", "[fd00:10:244:2::6]:8080")
	two4     = addrPorts("10.244.1.5:8080", "10.244.2.6:8080")
	two6     = addrPorts("[fd00:10:244:1::5]:8080", "[fd00:10:244:2::6]:8080")
	sticky4  = addrPorts("10.244.1.5:8080", "10.244.1.6:8080")
)

func TestRunner(t *testing.T) {
	t.Run("hand-written rules do what they say", testHandWrittenRulesDoWhatTheySay)
	t.Run("a wrong expectation fails", testWrongExpectationFails)
	t.Run("untouched notices NAT", testUntouchedNoticesNAT)
	t.Run("packets are untouched without rules", testPacketsAreUntouchedWithoutRules)
	t.Run("endpoints are reached directly", testEndpointsAreReachedDirectly)
	t.Run("silence where nothing is there", testSilenceWhereNothingIsThere)
	t.Run("refusal where nobody listens", testRefusalWhereNobodyListens)
}

// A sender on the other node is left out where the source is kept: an endpoint there
// answers it directly, past the node under test.
func testHandWrittenRulesDoWhatTheySay(t *testing.T) {
	r := newRunner(t, handWritten)
	var flows []Flow
	add := func(from Origin, protocol Protocol, to netip.Addr, port uint16, expect Expectation) {
		at := netip.AddrPortFrom(to, port)
		name := string(from) + " " + string(protocol) + " " + at.String()
		flows = append(flows, Flow{Name: name, From: from, To: at, Protocol: protocol, Expect: expect})
	}
	for _, from := range []Origin{FromClient, FromNode, FromOutside, FromOutside2, FromRemote, "10.244.1.5", "fd00:10:244:1::5"} {
		for _, protocol := range []Protocol{TCP, UDP, SCTP} {
			if from != "fd00:10:244:1::5" {
				if from != FromRemote {
					add(from, protocol, service4, 80, Expectation{Endpoints: three4, Source: Kept})
				}
				add(from, protocol, service4, 81, Expectation{Endpoints: two4, Source: Masqueraded})
				add(from, protocol, service4, 82, Expectation{Result: Refused})
				add(from, protocol, service4, 83, Expectation{Result: Dropped})
				add(from, protocol, service4, 85, Expectation{Endpoints: sticky4, Sticky: true})
			}
			if from != "10.244.1.5" {
				if from != FromRemote {
					add(from, protocol, service6, 80, Expectation{Endpoints: three6, Source: Kept})
				}
				add(from, protocol, service6, 81, Expectation{Endpoints: two6, Source: Masqueraded})
				add(from, protocol, service6, 82, Expectation{Result: Refused})
				add(from, protocol, service6, 83, Expectation{Result: Dropped})
			}
		}
	}
	add(FromClient, ICMP, service4, 0, Expectation{Result: Refused})
	add(FromNode, ICMP, service6, 0, Expectation{Result: Refused})
	if err := r.Run(flows); err != nil {
		t.Error(err)
	}
}

// testWrongExpectationFails shows for each kind of expectation that a packet which becomes
// something else is noticed.
func testWrongExpectationFails(t *testing.T) {
	var w wrongs
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		w.addAll(protocol)
	}
	w.add(ICMP, "client", "10.96.0.10", Expectation{Result: Dropped}, "was refused")
	w.add(ICMP, "client", "10.244.1.5", Expectation{Result: Refused}, "answered")
	w.add(ICMP, "client", "10.96.0.11", Expectation{Result: Refused}, "got no answer, want an ICMP port unreachable")
	w.add(ICMP, "client", "10.96.0.10", Expectation{Result: Untouched}, "cannot be untouched")
	w.add(UDP, "10.244.1.99", "10.96.0.10:80", Expectation{Result: Dropped}, "cannot send")
	w.add(UDP, "node", "10.96.0.10:80", Expectation{Endpoints: three4, Source: Masqueraded}, "want the source address masqueraded")
	w.add(UDP, "node", "10.96.0.10:81", Expectation{Endpoints: two4, Source: Kept}, "want the source address kept")
	w.fail(t, newRunner(t, handWritten))
}

func (w *wrongs) addAll(protocol Protocol) {
	const to80, to82, to83 = "10.96.0.10:80", "10.96.0.10:82", "10.96.0.10:83"
	all := Expectation{Endpoints: three4}
	w.add(protocol, "client", to80, Expectation{Endpoints: two4}, "reached 10.244.1.6:8080, which saw 10.244.1.250")
	w.add(protocol, "client", "10.96.0.10:84", Expectation{Endpoints: two4}, "want one of [10.244.1.5:8080 10.244.2.6:8080]")
	w.add(protocol, "client", to80, Expectation{Endpoints: append(addrPorts("10.244.1.9:8080"), three4...)}, "reached [10.244.1.9:8080]")
	w.add(protocol, "client", to80, Expectation{Endpoints: three4, Sticky: true}, "want the same endpoint as before")
	w.add(protocol, "client", to80, Expectation{Endpoints: three4, Source: Masqueraded}, "want the source address masqueraded")
	w.add(protocol, "client", "10.96.0.10:81", Expectation{Endpoints: two4, Source: Kept}, "want the source address kept, 10.244.1.250")
	w.add(protocol, "client", to80, Expectation{Result: Refused}, "want an ICMP port unreachable")
	w.add(protocol, "client", to80, Expectation{Result: Dropped}, "want silence")
	w.add(protocol, "client", to80, Expectation{Result: Untouched}, "cannot be untouched")
	w.add(protocol, "client", to82, all, "was refused")
	w.add(protocol, "client", to82, Expectation{Result: Dropped}, "was refused (ICMP type 3 code 3 from")
	w.add(protocol, "node", "[fd00:10:96::10]:82", Expectation{Result: Dropped}, "was refused (ICMPv6 type 1 code 4 from")
	w.add(protocol, "client", to83, Expectation{Result: Refused}, "got no answer, want an ICMP")
	if protocol != TCP {
		// A TCP server learns of a connection only when the client has its answer.
		w.add(protocol, "client", "10.96.0.10:86", Expectation{Result: Dropped}, "reached 10.244.1.5:8081, whose answer got lost")
	}
}

// testUntouchedNoticesNAT has a rule that masquerades what only passes by.
func testUntouchedNoticesNAT(t *testing.T) {
	r := newRunner(t, `
table ip passing {
	chain nat-postrouting {
		type nat hook postrouting priority srcnat
		ip daddr 10.244.1.5 masquerade
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat
		ip daddr 10.244.2.6 meta l4proto { tcp, udp, sctp } th dport 9090 dnat to 10.244.2.6:8080
	}
}`)
	var w wrongs
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		w.add(protocol, "outside", "10.244.1.5:9090", Expectation{Result: Untouched}, "which saw 10.244.1.254:")
		w.add(protocol, "outside", "10.244.2.6:9090", Expectation{Result: Untouched}, "reached 10.244.2.6:8080")
	}
	w.add(ICMP, "outside", "10.244.1.5", Expectation{Result: Untouched}, "which saw 10.244.1.254:")
	w.fail(t, r)
}
