package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	updatesPerSecond = 10_000
	updateSeconds    = 3
	updatedServices  = 50
)

// TestUpdates sends more updates than a cluster of any size makes.
func TestUpdates(t *testing.T) {
	t.Run("at 10,000 a second are merged", testUpdatesAreMerged)
}

func testUpdatesAreMerged(t *testing.T) {
	f := newWithServer(t)
	var objects manifests.Objects
	all, err := manifests.Load(f.g.ManifestsDir(t))
	if err != nil {
		t.Fatal(err)
	}
	objects = all
	for i := range updatedServices {
		service, slice := updated(i, 0)
		lab.Create(t, f.server, service, slice)
		objects.Services, objects.EndpointSlices = append(objects.Services, service), append(objects.EndpointSlices, slice)
	}
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	f.becomes(t, "200 200")
	before, resident, syncs := f.usage(t, p), process.ResidentBytes(t, p.Cmd.Process.Pid), f.syncs(t)

	begin, sent := time.Now(), 0
	for time.Since(begin) < updateSeconds*time.Second {
		for due := int(time.Since(begin).Seconds() * updatesPerSecond); sent < due; sent++ {
			_, slice := updated(sent%updatedServices, sent)
			lab.Update(t, f.server, slice)
			objects.EndpointSlices[len(objects.EndpointSlices)-updatedServices+sent%updatedServices] = slice
		}
		if codes, body, err := f.health(); codes != "200 200" {
			t.Fatalf("during the updates health is %s %s, %v", codes, body, err)
		}
	}
	want, err := flows.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, f.g.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the kernel has the last state", func() error { return lab.TableError(f.conn, want) })
	took := time.Since(begin)
	made, grown := f.syncs(t)-syncs, process.ResidentBytes(t, p.Cmd.Process.Pid)-resident
	t.Logf("%d updates in %d s; after %v all were applied, with %d syncs; the proxy has grown by %d MiB", sent, updateSeconds, took.Round(time.Millisecond), made, grown>>20)
	if full := updatesPerSecond * updateSeconds; sent > full*9/10 && made > sent/2 {
		t.Errorf("%d syncs for %d updates, want them merged; see model.Loop", made, sent)
	}
	if late := took - updateSeconds*time.Second; late > 30*time.Second {
		t.Errorf("the last update was applied %v after it was sent; see what queues them", late)
	}
	if limit := 64 << 20; grown > limit {
		t.Errorf("the proxy has grown by %d MiB; see who keeps updates", grown>>20)
	}
	f.comesBackTo(t, p, before)
	f.becomes(t, "200 200")
}

// updated is the i-th Service, as the n-th update leaves it.
func updated(i, n int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	return serviceAt(fmt.Sprint("updated-", i), fmt.Sprint("10.96.7.", i+1), fmt.Sprintf("10.244.1.%d", 1+n/updatedServices%200), "10.244.1.201")
}

// syncs returns the number of Syncs that the proxy has made.
func (f *troubled) syncs(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(f.metric(t, `kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// firewall keeps connection tracking on while the proxy's tables are not there, as network plugins do.
const firewall = `add table inet firewall
add chain inet firewall forward { type filter hook forward priority 0; }
add rule inet firewall forward ct state established accept
add chain inet firewall output { type filter hook output priority 0; }
add rule inet firewall output ct state established accept
`

// A connection whose first packet came while the rules were not there was never translated, and its next packets share
// that. The proxy removes what conntrack has of it, and the client's next SYN finds an endpoint.
func TestUntranslatedConnection(t *testing.T) {
	t.Parallel()
	g := flows.FindCase(t, "load-balancer-policy-cluster-is-masqueraded")
	l := lab.ForTest(t)
	c := lab.Conn(t, l.Node)
	b := backendFor(t, c, g, proxy.Hooks{})
	cleaner, err := conntrack.NewCleaner(conntrack.CleanerOptions{NetNS: int(l.Node.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	b.RemoveStaleFlows(cleaner)
	serve(t, l, g)
	lab.Nft(t, l.Node, firewall, "-f", "-")
	for _, tt := range []struct {
		name string
		from *lab.Host
		to   string
	}{
		{"from a pod to a load balancer IP", l.Client, "192.0.2.10:80"},
		{"from outside to a load balancer IP, over IPv6", l.Outside, "[2001:db8:192::10]:80"},
		{"from the node to a ClusterIP", l.Node, "10.96.0.10:80"},
	} {
		t.Run("finds an endpoint at its next SYN "+tt.name, func(t *testing.T) {
			lab.Nft(t, l.Node, "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n", "-f", "-")
			dialed := make(chan error, 1)
			go func() {
				dialed <- tt.from.Do(func() error {
					conn, err := net.DialTimeout("tcp", tt.to, await.Patience)
					if err == nil {
						conn.Close()
					}
					return err
				})
			}()
			time.Sleep(100 * time.Millisecond) // for the first SYN
			if repaired, err := b.Check(t.Context()); err != nil || !repaired {
				t.Fatalf("Check = %v, %v; want a repair", repaired, err)
			}
			if err := cleaner.Clean(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-dialed; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSourceRanges(t *testing.T) {
	t.Parallel()
	t.Run("in thousands are elements of one set", testThousandsOfSourceRanges)
}

// Thousands of source ranges, nested and side by side, are elements of one set: they let in whom
// they should, and one more or less is a change of one element.
func testThousandsOfSourceRanges(t *testing.T) {
	l := lab.ForTest(t)
	servePod(t, l, "web", "10.244.1.5")
	var commits []nft.CommitStats
	b, err := proxy.NewBackend(lab.Conn(t, l.Node), compiler.Default(), proxy.Hooks{OnCommit: func(s nft.CommitStats) { commits = append(commits, s) }})
	if err != nil {
		t.Fatal(err)
	}
	var ranges []netip.Prefix
	for i := range 5000 {
		addr := netip.AddrFrom4([4]byte{100, 64 + byte(i>>12), byte(i >> 4), byte(i << 4)})
		ranges = append(ranges, netip.PrefixFrom(addr, 28), netip.PrefixFrom(addr.Next(), 32))
	}
	sync := func(full bool, ranges ...netip.Prefix) {
		t.Helper()
		slices.SortFunc(ranges, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		port := &model.ServicePort{
			ID:              model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}, Port: 80, LoadBalancerSourceRanges: ranges,
			Cluster: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
		}
		changes := &model.Changes{Full: full, Ports: map[model.PortID]*model.ServicePort{port.ID: port}}
		if err := b.Sync(context.Background(), changes); err != nil {
			t.Fatal(err)
		}
	}
	mayDial := func(from netip.Addr, want bool) {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 10 * time.Second}
		if !want {
			dialer.Timeout = time.Second
		}
		var conn net.Conn
		err := l.Outside.Do(func() (err error) {
			conn, err = dialer.Dial("tcp", "192.0.2.10:80")
			return err
		})
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want {
			t.Errorf("%s dials with %d ranges: %v; want it let in: %v", from, len(ranges), err, want)
		}
	}

	sync(true, ranges...)
	mayDial(lab.OutsideAddrs.IPv4, false)
	one := netip.MustParsePrefix("198.51.100.4/30")
	sync(false, append(slices.Clone(ranges), one)...)
	mayDial(lab.OutsideAddrs.IPv4, true)
	mayDial(lab.SecondOutsideAddrs.IPv4, false)
	if last := commits[len(commits)-1]; last.Elements != 1 || last.Chains != 0 {
		t.Errorf("one more range took %d elements and %d chains, want one element", last.Elements, last.Chains)
	}
	sync(false, ranges...)
	mayDial(lab.OutsideAddrs.IPv4, false)
	for i, s := range commits {
		t.Logf("commit %d: %d elements, %d bytes, %v in the kernel", i, s.Elements, s.Bytes, s.Kernel)
	}
}

const scaleServices = 10_000

func TestScale(t *testing.T) {
	t.Parallel()
	t.Run("ten thousand Services are few chains in the kernel", testTenThousandServicesAreFewChainsInTheKernel)
}

func testTenThousandServicesAreFewChainsInTheKernel(t *testing.T) {
	dir := t.TempDir()
	writeServicesOf(t, filepath.Join(dir, "services.yaml"), scaleServices, 2)
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
