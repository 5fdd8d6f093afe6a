package takeover

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

const (
	manifestsFile = "testdata/manifests.yaml"
	clusterCIDR   = "10.244.0.0/16,fd00:10:244::/48"
)

func TestMain(m *testing.M) { lab.Main(m) }

// startOurs starts this module's kube-proxy with the manifests.
func startOurs(t *testing.T, h *lab.Host, more ...string) *lab.Process {
	t.Helper()
	return lab.Start(t, h, "kube-proxy", slices.Concat(flags, []string{"--manifests", manifestsDir(t), "-v=2"}, more)...)
}

// manifestsDir returns a directory that holds nothing but the manifests.
func manifestsDir(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// flags are those that this module's kube-proxy and Kubernetes' get alike.
var flags = []string{
	"--proxy-mode=nftables", "--hostname-override=" + lab.NodeName, "--cluster-cidr=" + clusterCIDR,
	// The sysctls of connection tracking are in part those of the whole machine.
	"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
}

// wanted returns the tables that this module makes of the manifests.
func wanted(t *testing.T) []*nft.Table {
	t.Helper()
	objects, err := manifests.Load(manifestsFile)
	if err != nil {
		t.Fatal(err)
	}
	config := compiler.Default()
	for _, cidr := range strings.Split(clusterCIDR, ",") {
		config.DetectLocal.CIDRs = append(config.DetectLocal.CIDRs, netip.MustParsePrefix(cidr))
	}
	tables, err := flows.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, config)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// awaitOurs waits until the kernel's tables are the ones that this module makes, and hold nothing else.
func awaitOurs(t *testing.T, c *nft.Conn) {
	t.Helper()
	want := wanted(t)
	await.Until(t, "the tables are this proxy's", func() error {
		for _, w := range want {
			got, err := c.ReadTable(t.Context(), w.Family, w.Name)
			if err != nil {
				return err
			}
			if tx := nft.Diff(got, w); !tx.Empty() {
				return fmt.Errorf("table %s has something else; to change: %.2000s", w.Family, tx)
			}
		}
		return nil
	})
}
