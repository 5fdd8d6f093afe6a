package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/nftproxy/nftproxy/integration/golden"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/integration/lab/labtest"
)

func TestNodePortAddresses(t *testing.T) {
	t.Run("health checks of a family that they do not name answer everywhere", testHealthChecksOfAnUnnamedFamilyAnswerEverywhere)
}

// The health checks of Services are where node ports are: in a family that nodePortAddresses does not
// name, on every address. A warning says so.
func testHealthChecksOfAnUnnamedFamilyAnswerEverywhere(t *testing.T) {
	g := golden.Find(t, "source-ranges-under-policy-local")
	l := labtest.New(t)
	text, err := os.ReadFile(g.ConfigFile(t))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, append(text, "nodePortAddresses: [10.244.1.254/32]\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	p := labtest.Start(t, l.Node, "kube-proxy", "--config", config, "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t))
	for _, url := range []string{"http://10.244.1.254:32080", "http://[fd00:1::1]:32080", "http://[fd00:10:244:1::254]:32080", "http://[::1]:32080"} {
		await.Until(t, url+" answers", func() error {
			_, err := getFrom(l.Node, url)
			return err
		})
	}
	if _, err := getFrom(l.Node, "http://192.168.0.1:32080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the node's primary IPv4 address: %v, want a refusal", err)
	}
	if want := "nodePortAddresses: has no IPv6 address"; !strings.Contains(p.Output(), want) {
		t.Errorf("the log does not say %q:\n%s", want, p.Output())
	}
}
