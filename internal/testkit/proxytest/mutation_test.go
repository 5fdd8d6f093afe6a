package proxytest

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

var mutations = flag.Bool("mutations", false, "try all mutations of the compiler, and not only two of them")

// TestMutations builds proxies whose compiler has a defect. The cases about it must find
// it, and one that is not about it must not.
func TestMutations(t *testing.T) {
	netns.Need(t)
	for i, m := range []struct {
		name, file, old, new string
		// finds is a case that must find it, and passes one that must not.
		finds, passes string
	}{
		{"hairpins are not masqueraded", "compiler/program.go",
			"if p.has(hairpinElement, false) {", "if false {",
			"hairpin-over-cluster-ip", "cluster-ip-udp"},
		{"the last endpoint is never chosen", "compiler/endpointchain.go",
			"draw(nft.Numgen{Mod: uint32(c.count)})", "draw(nft.Numgen{Mod: uint32(c.count - 1)})",
			"cluster-ip-spreads-over-all-endpoints", "cluster-ip-sends-to-its-only-endpoint"},
		{"the lowest rank wins", "compiler/claim.go",
			"return p.rank < other.rank", "return p.rank > other.rank",
			"cluster-ip-beats-external-ip", "cluster-ip-udp"},
		{"the last name wins", "compiler/claim.go",
			"return p.port.ID.Compare(other.port.ID) < 0", "return p.port.ID.Compare(other.port.ID) > 0",
			"first-service-by-name-keeps-a-contested-external-ip", "cluster-ip-beats-external-ip"},
		{"source ranges are ignored", "compiler/plan.go",
			"return p.port.LoadBalancerSourceRanges", "return nil",
			"source-ranges-drop-all-others", "load-balancer-with-several-addresses"},
		{"there is no affinity", "compiler/plan.go",
			"if port.AffinityTimeout > 0 {", "if port.AffinityTimeout < 0 {",
			"affinity-over-cluster-ip", "cluster-ip-spreads-over-all-endpoints"},
		{"internal policy Local is ignored", "compiler/plan.go",
			"local = p.InternalPolicy == model.PolicyLocal", "local = false",
			"internal-policy-local-uses-local-endpoints", "load-balancer-policy-local-keeps-the-source"},
		{"without endpoints packets are dropped", "compiler/plan.go",
			"decided.unserved = unservedReject", "decided.unserved = unservedDrop",
			"no-endpoints-refuses-every-frontend", "internal-policy-local-without-local-endpoints-drops"},
		{"masqueradeAll is ignored", "compiler/clients.go",
			"case kind == kindExternal || p.config.MasqueradeAll:", "case kind == kindExternal:",
			"masquerade-all-masquerades-pods-too", "masquerade-mark-from-config"},
		{"external IPs are ignored", "compiler/claim.go",
			"range p.ExternalIPs {", "range p.ExternalIPs[:0] {",
			"external-ip-policy-cluster-is-masqueraded", "cluster-ip-udp"},
	} {
		if i > 1 && !*mutations {
			break
		}
		t.Run(m.name, func(t *testing.T) {
			cases := []flows.Case{flows.FindCase(t, m.finds), flows.FindCase(t, m.passes)}
			report, err := Run(t.Context(), cases, Options{Command: mutant(t, m.file, m.old, m.new) + " --config {config}"})
			if err != nil {
				t.Fatal(err)
			}
			verdicts := map[string]Verdict{}
			for _, r := range report.Results {
				verdicts[r.Case] = r.Verdict
				if r.Verdict != Same {
					t.Logf("%s: %s", r.Case, r.brief())
				}
			}
			if verdicts[m.finds] != New || verdicts[m.passes] != Same {
				t.Errorf("%s is %s, want new; %s is %s, want same", m.finds, verdicts[m.finds], m.passes, verdicts[m.passes])
			}
		})
	}
}

// mutant builds our program with a change in one file, and returns its path.
func mutant(t *testing.T, file, from, to string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../..", file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), from) == 0 {
		t.Fatalf("%s has no %q: the mutation needs another place", file, from)
	}
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{changed: []byte(strings.ReplaceAll(string(source), from, to)), overlay: list} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The flags are those of the test's other binaries, so that all but the compiler is compiled already.
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-overlay", overlay, "-o", program, "github.com/nftproxy/nftproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}
