// Package mutation has defects of the compiler, which tests must find.
package mutation

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Mutation is a defect: all that is Old in the file is New.
type Mutation struct {
	Name           string
	File, Old, New string
	// Finds is a golden case that must find the defect, and Passes is one that must not.
	Finds, Passes string
}

// All are the known mutations.
var All = []Mutation{
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
}

// Find returns the mutation of this name.
func Find(name string) (Mutation, error) {
	for _, m := range All {
		if m.Name == name {
			return m, nil
		}
	}
	return Mutation{}, fmt.Errorf("there is no mutation %q", name)
}

// Build builds the kube-proxy of the repository at root with the defect. The repository stays as it is.
func (m Mutation) Build(ctx context.Context, goCommand, root, program string) error {
	path, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(source), m.Old) {
		return fmt.Errorf("%s has no %q: the mutation needs another place", m.File, m.Old)
	}
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{changed: []byte(strings.ReplaceAll(string(source), m.Old, m.New)), overlay: list} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return err
		}
	}
	// The flags are those of other builds, so that all but the compiler is compiled already.
	build := exec.CommandContext(ctx, goCommand, "build", "-tags=grpcnotrace", "-trimpath", "-buildvcs=false", "-overlay="+overlay, "-o", program, "./cmd/kube-proxy")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
