package verb

import (
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// run runs ruledump and returns what it prints.
func run(args ...string) (string, error) {
	var out strings.Builder
	cmd := New()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

// explainExample runs "ruledump explain" for the manifests that the documentation explains.
func explainExample(args ...string) (string, error) {
	const example = "../../../docs/example/"
	return run(append([]string{"explain", "--manifests", example + "manifests", "--config", example + "config.yaml", "--node", "node-1"}, args...)...)
}

func TestExplain(t *testing.T) {
	t.Run("prints the path that all endpoints share once", testExplainPrintsThePathThatAllEndpointsShareOnce)
	t.Run("says what becomes of a packet", testExplainSaysWhatBecomesOfAPacket)
	t.Run("refuses what it cannot read", testExplainRefusesWhatItCannotRead)
	t.Run("needs all that it is asked", testExplainNeedsAllThatItIsAsked)
	t.Run("asks for a source port that decides", testExplainAsksForASourcePort)
}

// Direct return chooses the node by the client's port.
func testExplainAsksForASourcePort(t *testing.T) {
	cases := flows.Cases(t)
	c := cases[slices.IndexFunc(cases, func(c flows.Case) bool { return c.Name == "direct-return-keeps-the-source" })]
	args := []string{"explain", "--manifests", c.ManifestsDir(t), "--config", c.ConfigFile(t), "--node", lab.NodeName, "--to=192.0.2.10:80"}
	const want = "the source port is not known: give one, as in --from 198.51.100.7:40000"
	if status, _, stderr := execute(append(args, "--from=198.51.100.7")...); status != 2 || !strings.Contains(stderr, want) {
		t.Errorf("status %d: %s", status, stderr)
	}
	if status, stdout, stderr := execute(append(args, "--from=198.51.100.7:40000")...); status != 0 || !strings.Contains(stdout, "to 10.244.") {
		t.Errorf("status %d: %s%s", status, stderr, stdout)
	}
}

func testExplainPrintsThePathThatAllEndpointsShareOnce(t *testing.T) {
	const (
		head = `tcp 198.51.100.7 to 192.0.2.10:80

to 10.244.1.5:8080 or 10.244.1.6:8080, source kept
  why: sent to one of 2 endpoints on node-1: shop/web:http; the source is kept: externalTrafficPolicy is Local
  prerouting
`
		path = `    ip kube-proxy nat-prerouting: jump services
      services: ip daddr . meta l4proto . th dport vmap @service-ips
          192.0.2.10 . tcp . 80 comment "shop/web:http" : goto local-2
        local-2: jump short-circuit
          short-circuit: no rule matches
        local-2: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @local-endpoints (accept)
            192.0.2.10 . tcp . 80 . 0 : 10.244.1.5 . 8080
            192.0.2.10 . tcp . 80 . 1 : 10.244.1.6 . 8080
    routing: forwarded
`
	)
	got, err := explainExample("--from", "198.51.100.7", "--to", "192.0.2.10:80")
	if err != nil {
		t.Fatal(err)
	}
	if want := head + path; got != want { // without chains that accept everything
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func testExplainSaysWhatBecomesOfAPacket(t *testing.T) {
	for _, tc := range []struct {
		name, from, to string
		want           []string
	}{
		{
			name: "an endpoint may be sent to itself, and then is masqueraded",
			from: "10.244.1.5", to: "10.96.0.10:80/tcp",
			want: []string{"2 possible fates", "to 10.244.1.5:8080, source masqueraded", "to 10.244.1.6:8080 or 10.244.2.6:8080, source kept"},
		},
		{
			name: "an address of the Node's is a process of the node",
			from: "192.168.0.1", to: "192.168.0.1:30443",
			want: []string{"tcp 192.168.0.1 to 192.168.0.1:30443, from a process of the node", "to 10.244.1.7:8443 or 10.244.2.7:8443, source masqueraded", "nat-output: jump services"},
		},
		{
			name: "nothing to send to",
			from: "10.244.1.250:40000", to: "10.96.0.30:80",
			want: []string{"refused: the sender gets an ICMP port unreachable", "goto reject-chain"},
		},
		{
			name: "an echo request to an address that no Service has",
			from: "10.244.1.250", to: "10.96.0.99/icmp",
			want: []string{"icmp 10.244.1.250 to 10.96.0.99\n", "dropped", `comment "an address that no Service holds"`},
		},
		{
			name: "something else over IPv6",
			from: "fd00::1", to: "[fd00::2]:53/UDP",
			want: []string{"udp fd00::1 to [fd00::2]:53", "untouched, to [fd00::2]:53"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := explainExample("--from", tc.from, "--to", tc.to)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
		})
	}
}

func testExplainRefusesWhatItCannotRead(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no port", []string{"--from", "10.0.0.1", "--to", "10.0.0.2"}, "--to: tcp needs a port, as in 10.0.0.2:80"},
		{"no address", []string{"--from", "web", "--to", "10.0.0.2:80"}, `--from: "web" is neither an IP address nor one with a port, such as 10.96.0.10:80 or [fd00::1]:80`},
		{"a port that is too large", []string{"--from", "10.0.0.1", "--to", "10.0.0.2:70000"}, `--to: "10.0.0.2:70000": port "70000" is not a number from 1 to 65535`},
		{"a port by its name", []string{"--from", "10.0.0.1", "--to", "[fd00::2]:http/tcp"}, `--to: "[fd00::2]:http": port "http" is not a number from 1 to 65535`},
		{"a port by its name, without an address", []string{"--from", "10.0.0.1", "--to", ":http"}, `--to: ":http": port "http" is not a number from 1 to 65535`},
		{"a source port that is too large", []string{"--from", "10.0.0.1:70000%eth0", "--to", "10.0.0.2:80"}, `--from: "10.0.0.1:70000": port "70000" is not a number from 1 to 65535`},
		{"addresses without flags", []string{"10.0.0.1", "10.0.0.2:80"}, "explain takes its addresses by flags: did you mean --from 10.0.0.1 --to 10.0.0.2:80?"},
		{"one address without a flag", []string{"10.0.0.1"}, `explain takes its addresses by flags, and "10.0.0.1" belongs to none: give --from ADDRESS --to ADDRESS:PORT`},
		{"another protocol", []string{"--from", "10.0.0.1", "--to", "10.0.0.2:80/http"}, `--to: protocol "http" is not tcp, udp, sctp or icmp`},
		{"a port of ICMP", []string{"--from", "10.0.0.1", "--to", "10.0.0.2:80/icmp"}, "--to: icmp has no ports"},
		{"both families", []string{"--from", "10.0.0.1", "--to", "[fd00::1]:80"}, "--from 10.0.0.1 and --to [fd00::1]:80 are of different IP families"},
		{"an interface for the node's own packet", []string{"--from", "192.168.0.1", "--to", "10.0.0.2:80", "--iif", "eth0"}, "evaluator: a packet of the node's own comes in by no interface, not by eth0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := explainExample(tc.args...)
			if err == nil || err.Error() != tc.want {
				t.Errorf("error %v, want %s\n%s", err, tc.want, out)
			}
		})
	}
}

func testExplainNeedsAllThatItIsAsked(t *testing.T) {
	for _, args := range [][]string{
		{"explain", "--to", "10.0.0.2:80"},
		{"explain", "--from", "10.0.0.2"},
		{"explain", "--from", "10.0.0.1", "--to", "10.0.0.2:80", "--manifests", "x"},
	} {
		if out, err := run(args...); err == nil {
			t.Errorf("ruledump %v succeeds:\n%s", args, out)
		}
	}
}
