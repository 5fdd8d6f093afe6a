package proxytest

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/testdata"
)

// ForTest runs all golden cases over a proxy and fails the test for each case with a new difference. If expect is not
// empty, expect.NAME.yaml says what the proxy promises.
func ForTest(t *testing.T, command, expect string) *Report {
	t.Helper()
	netns.Need(t)
	o := Options{Command: command}
	if expect != "" {
		data, err := fs.ReadFile(testdata.Corpus, "expect."+expect+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if o.Promise, err = flows.ReadPromise(data, flows.Cases(t)); err != nil {
			t.Fatalf("expect.%s.yaml: %v", expect, err)
		}
	}
	report, err := Run(t.Context(), flows.Cases(t), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Verdict == New {
			t.Error(r.text())
		}
	}
	t.Log(report.summary())
	return report
}

// ExampleCommand returns the command of the example in the current directory, which it builds, with the flags that most
// examples have.
func ExampleCommand(t *testing.T) string {
	t.Helper()
	netns.Need(t)
	return strings.Join([]string{flows.Build(t), "-node-local-source {node-local} -hostname-override {node}",
		"-cluster-cidr 10.244.0.0/16 -cluster-cidr fd00:10:244::/48"}, " ")
}
