package integration

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
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
	if late := took - updateSeconds*time.Second; late > 10*time.Second {
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

// syncs is how many the proxy has made.
func (f *troubled) syncs(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(f.metric(t, `kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
