package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/tracker"
)

const scaleServices = 10_000

// writeManyServices writes Services with two endpoints each, as JSON, which reads faster than YAML.
func writeManyServices(t *testing.T, dir string, n int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		high, low := i/250, i%250+1
		fmt.Fprintf(&b, `---
{"apiVersion":"v1","kind":"Service","metadata":{"name":"service-%d","namespace":"scale"},
"spec":{"type":"ClusterIP","clusterIP":"10.96.%d.%d","clusterIPs":["10.96.%[2]d.%[3]d"],"ipFamilies":["IPv4"],"ports":[{"port":80,"protocol":"TCP","targetPort":8080}]}}
---
{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"service-%[1]d-x","namespace":"scale","labels":{"kubernetes.io/service-name":"service-%[1]d"}},
"addressType":"IPv4","ports":[{"port":8080,"protocol":"TCP"}],
"endpoints":[{"addresses":["10.244.%[2]d.%[3]d"],"conditions":{"ready":true}},{"addresses":["10.245.%[2]d.%[3]d"],"conditions":{"ready":true}}]}
`, i, high, low)
	}
	if err := os.WriteFile(filepath.Join(dir, "services.yaml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestScale(t *testing.T) {
	t.Run("ten thousand Services are few chains in the kernel", testTenThousandServicesAreFewChainsInTheKernel)
}

func testTenThousandServicesAreFewChainsInTheKernel(t *testing.T) {
	dir := t.TempDir()
	writeManyServices(t, dir, scaleServices)
	objects, err := manifests.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	track := tracker.New(tracker.Options{NodeName: "node-1"})
	objects.Feed(track)

	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b, err := proxy.NewBackend(c, compiler.Default(), proxy.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	mustSync(t, b, track.Changes())
	checkHeld(t, c, b)

	listing := lab.Nft(t, l.Node, "", "list", "ruleset")
	if n := strings.Count(listing, "\n\tchain "); n == 0 || n > 2*60 {
		t.Errorf("nft lists %d chains in two tables, want at most 60 a table", n)
	}
	var want, got []string
	for i := range scaleServices {
		want = append(want, fmt.Sprintf(`10.96.%d.%d . tcp . 80 comment "scale/service-%d"`, i/250, i%250+1, i))
	}
	slices.Sort(want)
	// So many frontends of one chain are in a set of that chain.
	_, set, found := strings.Cut(listing, "\tset service-ips-cluster-2 {\n")
	set, _, ended := strings.Cut(set, "\n\t}\n")
	if !found || !ended || !strings.Contains(listing, "ip daddr . meta l4proto . th dport @service-ips-cluster-2 goto cluster-2") {
		t.Fatal("nft lists no set service-ips-cluster-2, or no rule that leads from it to its chain")
	}
	for _, line := range sortedLines(set) {
		if strings.HasPrefix(line, "10.96.") {
			got = append(got, line)
		}
	}
	if !slices.Equal(want, got) {
		t.Errorf("nft lists other frontends (-want +listed):\n%s", cmp.Diff(want, got))
	}
}
