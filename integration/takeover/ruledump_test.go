package takeover

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func runRuledump(t *testing.T, h *lab.Host, args ...string) (status int, output string) {
	t.Helper()
	p := lab.Start(t, h, "ruledump", args...)
	_ = p.Wait() // the status says it
	return p.Cmd.ProcessState.ExitCode(), lab.Abandoned.ReplaceAllString(p.Output(), "")
}

// ruledumped returns the JSON that a command prints.
func ruledumped[T any](t *testing.T, h *lab.Host, args ...string) (document T) {
	t.Helper()
	status, output := runRuledump(t, h, append(args, "-o=json")...)
	if status != 0 {
		t.Fatalf("ruledump %q: %s", args, output)
	}
	if err := json.Unmarshal([]byte(output), &document); err != nil {
		t.Fatalf("ruledump %q: %v: %s", args, err, output)
	}
	return document
}

// kubeProxyShapes are rulesets of Kubernetes' kube-proxy, with clients of the Services in them.
var kubeProxyShapes = []struct {
	name, file string
	streams    func(l *lab.Lab) []*stream
}{
	{"as recorded", recordedRuleset, streamsOf},
	{"with a chain for each endpoint", "testdata/endpoint-chains.nft", func(l *lab.Lab) []*stream {
		both := at([]lab.Addrs{pod(1, 5), pod(2, 6)}, 8080)
		return []*stream{
			{from: l.Client, network: "tcp", to: "10.96.0.10:80", endpoints: both},
			{from: l.Node, network: "tcp", to: "10.96.0.10:80", endpoints: both},
			{from: l.Outside, network: "tcp", to: "192.0.2.10:80", endpoints: both},
			{from: l.Outside, network: "tcp", to: "192.168.0.1:30080", endpoints: both},
			{from: l.Outside, network: "tcp", to: "192.0.2.20:80", endpoints: at([]lab.Addrs{pod(1, 5)}, 8080)},
			{from: l.Client, network: "tcp", to: "192.0.2.20:80", endpoints: both},
			{from: l.Client, network: "tcp", to: "10.96.0.40:80", endpoints: at([]lab.Addrs{pod(1, 5)}, 8080)},
			{from: l.Client, network: "tcp", to: "10.96.0.60:80", want: refused},
			{from: l.Client, network: "tcp", to: "10.96.0.10:81", want: refused},
			{from: l.Remote, network: "tcp", to: "192.0.2.10:80", want: dropped},
		}
	}},
}

// A real packet of each client meets the fate that explain predicts, from the kernel's rules and from a dump of them.
func testRuledumpReadsKubeProxys(t *testing.T) {
	for _, shape := range kubeProxyShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := lab.ForTest(t)
			lab.Nft(t, l.Node, "", "-f", shape.file)
			serveEndpoints(t, l)
			dump := filepath.Join(t.TempDir(), "dump.json")
			_, text := runRuledump(t, l.Node, "live", "-o=json")
			if err := os.WriteFile(dump, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, s := range shape.streams(l) {
				t.Run(s.String(), func(t *testing.T) {
					args := []string{"explain", "--from", source(t, s), "--to", s.to + "/" + s.network}
					explained(t, s, ruledumped[verb.Explanation](t, l.Node, args...))
					explained(t, s, ruledumped[verb.Explanation](t, l.Node, append(args, "--dump", dump)...))
					if err := s.from.Do(s.once); err != nil {
						t.Error(err)
					}
				})
			}
			for _, command := range [][]string{{"stats"}, {"graph", "shop/local"}, {"graph", "shop/web", "--dump", dump}, {"live"}, {"services", "shop/empty", "--unserved"}} {
				if status, output := runRuledump(t, l.Node, command...); status != 0 || !strings.Contains(output, "kube-proxy") && !strings.Contains(output, "shop/") && !strings.Contains(output, "TABLE") {
					t.Errorf("%q: status %d, %s", command, status, output)
				}
			}
			// conntrack forgets a connection ten seconds after its end, if that was a reset.
			for _, s := range shape.streams(l) {
				if err := s.from.Do(s.once); err != nil {
					t.Error(err)
				}
			}
			if list := ruledumped[verb.Connections](t, l.Node, "connections", "shop/web"); list.Total == 0 || list.Unserved > 0 {
				t.Errorf("connections: %+v", list)
			}
			status, output := runRuledump(t, l.Node, "diff", "--manifests", manifestsFile, "--node", lab.NodeName, "--proxy-address=")
			if want := "ruledump: the tables were written by Kubernetes' kube-proxy"; status != 2 || !strings.HasPrefix(output, want) {
				t.Errorf("diff: status %d, %q; want %q", status, output, want)
			}
		})
	}
}

// source returns the address that a stream's client has.
func source(t *testing.T, s *stream) (addr string) {
	t.Helper()
	if err := s.from.Do(func() error {
		conn, err := net.Dial("udp", s.to) // sends nothing
		if err == nil {
			addr = conn.LocalAddr().(*net.UDPAddr).IP.String()
			conn.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return addr
}

func explained(t *testing.T, s *stream, e verb.Explanation) {
	t.Helper()
	var got, want []string
	for _, o := range e.Outcomes {
		if result := map[outcome]string{served: "delivered", refused: "refused", dropped: "dropped"}[s.want]; o.Result != result || o.DecidedBy != nil || o.Reason == verb.ReasonOther {
			t.Errorf("explain says %s: %s; want %s", o.Result, o.Why, result)
		}
		for _, d := range o.Destinations {
			got = append(got, d.String())
		}
	}
	to := netip.MustParseAddrPort(s.to)
	for _, endpoint := range s.endpoints {
		if netip.MustParseAddrPort(endpoint).Addr().Is4() == to.Addr().Is4() {
			want = append(want, endpoint)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" && s.want == served {
		t.Errorf("endpoints (-want +explained):\n%s", diff)
	}
}

// The rows of services for kube-proxy's tables are those of nftproxy's, but for the names
// of chains and the places of endpoints.
func testRuledumpListsWhatOursWould(t *testing.T) {
	l := lab.ForTest(t)
	loadRecorded(t, l.Node)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: " + clusterCIDR + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := func(args ...string) (rows []map[string]any) {
		list := ruledumped[struct{ Frontends []map[string]any }](t, l.Node, append([]string{"services"}, args...)...)
		for _, f := range list.Frontends {
			delete(f, "chain")
			for _, field := range []string{"endpoints", "localEndpoints"} {
				endpoints, _ := f[field].([]any)
				for _, e := range endpoints {
					delete(e.(map[string]any), "node")
					delete(e.(map[string]any), "zone")
					delete(e.(map[string]any), "flows")
				}
			}
			rows = append(rows, f)
		}
		return rows
	}
	want := rows("--manifests", manifestsFile, "--config", config, "--node", lab.NodeName)
	if diff := cmp.Diff(want, rows()); diff != "" || len(want) < 20 {
		t.Errorf("rows (-nftproxy +kube-proxy):\n%s", diff)
	}
}
