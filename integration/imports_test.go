package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// No package of this module that the products are made of starts programs, and the
// libraries keep to their layers.
func TestImports(t *testing.T) {
	const module = "github.com/nftproxy/nftproxy"
	type forbidden struct{ of, what, why string }
	rules := []forbidden{
		{module + "/", "os/exec", "nothing executes a program"},
		{module + "/nft", "k8s.io/", "nft can be used without Kubernetes"},
		{module + "/nft", module + "/", "nft knows no Service"},
		{module + "/model", "k8s.io/", "a backend needs nothing but the model"},
		{module + "/evaluator", "k8s.io/", "the evaluator knows rules only"},
		{module + "/evaluator", module + "/compiler", "the evaluator takes rulesets, from whomever"},
		{module + "/evaluator", module + "/model", "the evaluator knows no Service"},
		{module + "/compiler", "k8s.io/", "the compiler knows no Kubernetes"},
		{module + "/compiler", module + "/tracker", "the compiler takes the model, from whomever"},
		{module + "/tracker", module + "/nft", "trackers can be used without nftables"},
		{module + "/tracker", module + "/compiler", "trackers can be used without nftables"},
		{module + "/tracker", "k8s.io/kubernetes", "not needed"},
		{module + "/internal/config/v1alpha2/iptables", module + "/", "no mode's configuration knows another's"},
		{module + "/internal/config/v1alpha2/ipvs", module + "/", "no mode's configuration knows another's"},
		{module + "/internal/config/v1alpha2/nftables", module + "/", "no mode's configuration knows another's"},
		{module + "/internal/config/v1alpha2/winkernel", module + "/", "no mode's configuration knows another's"},
	}
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports", "../cmd/kube-proxy", "../cmd/ruledump").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(p.ImportPath, module) {
			continue
		}
		seen++
		for _, r := range rules {
			for _, imp := range p.Imports {
				if (p.ImportPath == r.of || strings.HasSuffix(r.of, "/") && strings.HasPrefix(p.ImportPath, r.of)) && strings.HasPrefix(imp, r.what) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imp, r.why)
				}
			}
		}
	}
	if seen < 8 {
		t.Errorf("saw %d packages of the module; this test looks in the wrong place", seen)
	}
}
