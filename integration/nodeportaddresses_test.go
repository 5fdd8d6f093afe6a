package integration

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/vishvananda/netlink"
)

func TestNodePortAddresses(t *testing.T) {
	t.Run("health checks of a family that they do not name answer everywhere", testHealthChecksOfAnUnnamedFamilyAnswerEverywhere)
	t.Run("health checks answer on an address that comes later", testHealthChecksAnswerOnAnAddressThatComesLater)
}

// startWithNodePortAddresses starts a proxy for a Service with the health check port 32080.
func startWithNodePortAddresses(t *testing.T, addresses string) (*lab.Lab, *lab.Process) {
	t.Helper()
	g := flows.FindCase(t, "source-ranges-under-policy-local")
	l := lab.ForTest(t)
	text, err := os.ReadFile(g.ConfigFile(t))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, append(text, "nodePortAddresses: ["+addresses+"]\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	return l, lab.Start(t, l.Node, "kube-proxy", "--config", config, "--hostname-override="+lab.NodeName, "--manifests", g.ManifestsDir(t))
}

func awaitAnswer(t *testing.T, h *lab.Host, url string) {
	t.Helper()
	await.Until(t, url+" answers", func() error {
		_, err := getFrom(h, url)
		return err
	})
}

// The health checks of Services are where node ports are: in a family that nodePortAddresses does not
// name, on every address. A warning says so.
func testHealthChecksOfAnUnnamedFamilyAnswerEverywhere(t *testing.T) {
	l, p := startWithNodePortAddresses(t, "10.244.1.254/32")
	for _, url := range []string{"http://10.244.1.254:32080", "http://[fd00:1::1]:32080", "http://[fd00:10:244:1::254]:32080", "http://[::1]:32080"} {
		awaitAnswer(t, l.Node, url)
	}
	if _, err := getFrom(l.Node, "http://192.168.0.1:32080"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the node's primary IPv4 address: %v, want a refusal", err)
	}
	if want := "nodePortAddresses: has no IPv6 address"; !strings.Contains(p.Output(), want) {
		t.Errorf("the log does not say %q:\n%s", want, p.Output())
	}
}

// Node ports answer on an address as soon as the machine has it, because the rules ask the routing table.
func testHealthChecksAnswerOnAnAddressThatComesLater(t *testing.T) {
	l, _ := startWithNodePortAddresses(t, "203.0.113.0/24, 10.244.1.254/32")
	awaitAnswer(t, l.Node, "http://10.244.1.254:32080")
	if err := l.Node.Do(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(loopback, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 9), Mask: net.CIDRMask(32, 32)}})
	}); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, l.Node, "http://203.0.113.9:32080")
	awaitAnswer(t, l.Node, "http://10.244.1.254:32080")
}
