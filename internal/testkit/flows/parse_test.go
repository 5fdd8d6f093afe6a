package flows

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var compareAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

func TestParse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.yaml")
	if err := os.WriteFile(path, []byte(`
flows:
- name: everything said
  from: fd00:10:244:1::0005
  to: "[fd00:10:96::a]:53"
  protocol: UDP
  expect:
    endpoints: ["[fd00:10:244:1::5]:53"]
    sticky: true
    source: masqueraded
- name: as little as possible
  from: client
  to: 10.96.0.10:80
  expect: {result: refused}
- name: an echo
  from: node
  to: 10.96.0.10
  protocol: ICMP
  expect: {result: dropped}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []Flow{
		{
			Name: "everything said", From: "fd00:10:244:1::5", To: netip.MustParseAddrPort("[fd00:10:96::a]:53"), Protocol: UDP,
			Expect: Expectation{Endpoints: addrPorts("[fd00:10:244:1::5]:53"), Sticky: true, Source: Masqueraded},
		},
		{
			Name: "as little as possible", From: FromClient, To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: TCP,
			Expect: Expectation{Result: Refused},
		},
		{
			Name: "an echo", From: FromNode, To: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), 0), Protocol: ICMP,
			Expect: Expectation{Result: Dropped},
		},
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
	t.Run("names the field that is wrong", testParseNamesTheFieldThatIsWrong)
}

func testParseNamesTheFieldThatIsWrong(t *testing.T) {
	for _, test := range []struct{ name, flow, want string }{
		{"unknown field", "{name: x, from: client, to: '1.2.3.4:5', expct: {}}", `unknown field "expct"`},
		{"unknown expectation", "{name: x, from: client, to: '1.2.3.4:5', expect: {endpoint: []}}", `unknown field "endpoint"`},
		{"no name", "{from: client, to: '1.2.3.4:5', expect: {result: dropped}}", `flows[0] "": name: missing`},
		{"no sender", "{name: x, to: '1.2.3.4:5', expect: {result: dropped}}", `flows[0] "x": from: missing`},
		{"unknown sender", "{name: x, from: nobody, to: '1.2.3.4:5', expect: {result: dropped}}", `from: "nobody" is not`},
		{"sender of the other family", "{name: x, from: 'fd00::1', to: '1.2.3.4:5', expect: {result: dropped}}", "from: fd00::1 and"},
		{"no target", "{name: x, from: client, expect: {result: dropped}}", "to: missing"},
		{"target without port", "{name: x, from: client, to: 1.2.3.4, expect: {result: dropped}}", `to: "1.2.3.4" is not an IP address and port`},
		{"echo to a port", "{name: x, from: client, to: '1.2.3.4:5', protocol: ICMP, expect: {result: dropped}}", `to: "1.2.3.4:5" is not an IP address`},
		{"unknown protocol", "{name: x, from: client, to: '1.2.3.4:5', protocol: tcp, expect: {result: dropped}}", `protocol: "tcp" is not`},
		{"nothing expected", "{name: x, from: client, to: '1.2.3.4:5'}", "expect: needs either"},
		{"two things expected", "{name: x, from: client, to: '1.2.3.4:5', expect: {result: dropped, endpoints: ['1.2.3.4:5']}}", "expect: needs either"},
		{"unknown result", "{name: x, from: client, to: '1.2.3.4:5', expect: {result: rejected}}", `expect.result: "rejected" is not`},
		{"source of a result", "{name: x, from: client, to: '1.2.3.4:5', expect: {result: dropped, source: kept}}", "expect.source: goes with"},
		{"sticky result", "{name: x, from: client, to: '1.2.3.4:5', expect: {result: dropped, sticky: true}}", "expect.sticky: goes with"},
		{"unknown source", "{name: x, from: client, to: '1.2.3.4:5', expect: {source: keep, endpoints: ['1.2.3.4:5']}}", `expect.source: "keep" is not`},
		{"endpoint without port", "{name: x, from: client, to: '1.2.3.4:5', expect: {endpoints: ['1.2.3.4']}}", `expect.endpoints[0]: "1.2.3.4" is not`},
		{"endpoint of the other family", "{name: x, from: client, to: '1.2.3.4:5', expect: {endpoints: ['[fd00::1]:5']}}", "expect.endpoints[0]: [fd00::1]:5 and"},
		{"endpoint twice", "{name: x, from: client, to: '1.2.3.4:5', expect: {endpoints: ['1.2.3.4:5', '1.2.3.4:5']}}", "expect.endpoints[1]: 1.2.3.4:5 is there twice"},
		{"echo to endpoints", "{name: x, from: client, to: 1.2.3.4, protocol: ICMP, expect: {endpoints: ['1.2.3.4:5']}}", "expect.endpoints: an ICMP echo"},
		{"name twice", "{name: x, from: client, to: '1.2.3.4:5', expect: {result: dropped}}\n- {name: x, from: client, to: '1.2.3.4:5', expect: {result: dropped}}", `flows[1] "x": name: another`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte("flows:\n- " + test.flow + "\n"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := Parse([]byte("{}")); err == nil {
		t.Error("a file without flows was accepted")
	}
}

func TestOriginAddr(t *testing.T) {
	for _, test := range []struct {
		from     Origin
		to, want string
	}{
		{FromClient, "10.96.0.1", "10.244.1.250"},
		{FromNode, "fd00:10:96::1", "fd00:1::1"},
		{FromNode, "127.0.0.1", "127.0.0.1"},
		{FromNode, "10.244.1.254", "10.244.1.254"},
		{"10.244.1.5", "10.96.0.1", "10.244.1.5"},
	} {
		if got := test.from.Addr(netip.MustParseAddr(test.to)); got.String() != test.want {
			t.Errorf("%s to %s starts from %s, want %s", test.from, test.to, got, test.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Run("of all slices are merged", testEndpointsOfAllSlicesAreMerged)
}

func testEndpointsOfAllSlicesAreMerged(t *testing.T) {
	got, err := Endpoints([]byte(`--- # first
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1}
- {addresses: [10.244.2.6], conditions: {ready: false}}
- {addresses: [010.244.1.7]}
- {addresses: [127.0.0.1]}
---
apiVersion: v1
kind: List
items:
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-2}
  addressType: IPv4
  ports: [{name: http, port: 8080}, {name: any}]
  endpoints: [{addresses: [10.244.1.5]}, {addresses: [10.244.2.6], nodeName: node-2}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-3}
  addressType: FQDN
  endpoints: [{addresses: [example.com]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	ports := []Port{{TCP, 8080}, {UDP, 53}}
	want := []Endpoint{
		{Addr: netip.MustParseAddr("10.244.1.5"), Node: "node-1", Ports: ports},
		{Addr: netip.MustParseAddr("10.244.2.6"), Node: "node-2", Ports: ports},
	}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Errorf("Endpoints (-want +got):\n%s", diff)
	}
}

func TestSCTPPacket(t *testing.T) {
	t.Run("reads back", testSCTPPacketsReadBack)
}

func testSCTPPacketsReadBack(t *testing.T) {
	for _, packet := range []sctpPacket{
		{source: 1, destination: 2, chunk: chunkInit, initTag: 7},
		{source: 2, destination: 1, tag: 7, chunk: chunkInitAck, initTag: 8, cookie: "where you came from"},
		{source: 2, destination: 1, tag: 7, chunk: chunkAbort},
	} {
		got, ok := parseSCTP(packet.marshal())
		if !ok || got != packet {
			t.Errorf("got %+v, %t, want %+v", got, ok, packet)
		}
		damaged := packet.marshal()
		damaged[0]++
		if _, ok := parseSCTP(damaged); ok {
			t.Errorf("%+v was accepted with a wrong checksum", packet)
		}
	}
}

func FuzzParseSCTP(f *testing.F) {
	f.Add(sctpPacket{chunk: chunkInitAck, cookie: "x"}.marshal())
	f.Fuzz(func(_ *testing.T, b []byte) {
		if len(b) >= sctpHeaderLen {
			sum := sctpChecksum(b)
			b[8], b[9], b[10], b[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		}
		parseSCTP(b)
	})
}

func FuzzQuotedPacket(f *testing.F) {
	f.Add(make([]byte, 60))
	f.Fuzz(func(_ *testing.T, b []byte) {
		icmpv4.quoted(b)
		icmpv6.quoted(b)
	})
}
