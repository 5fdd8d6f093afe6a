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
