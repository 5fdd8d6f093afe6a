package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/integration/await"
	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/integration/lab/labtest"
	"github.com/nftproxy/nftproxy/internal/offline"
	"github.com/nftproxy/nftproxy/source/manifests"
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
	all, err := manifests.Load(f.g.path("manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects = all
	for i := range updatedServices {
		service, slice := updated(i, 0)
		(&uploader{t, f.server}).create(service)
		(&uploader{t, f.server}).create(slice)
		objects.Services, objects.EndpointSlices = append(objects.Services, service), append(objects.EndpointSlices, slice)
	}
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	f.becomes(t, "200 200")
	before, resident, syncs := f.usage(t, p), residentBytes(t, p), f.syncs(t)

	begin, sent := time.Now(), 0
	for time.Since(begin) < updateSeconds*time.Second {
		for due := int(time.Since(begin).Seconds() * updatesPerSecond); sent < due; sent++ {
			_, slice := updated(sent%updatedServices, sent)
			if _, err := f.server.Update(slice); err != nil {
				t.Fatal(err)
			}
			objects.EndpointSlices[len(objects.EndpointSlices)-updatedServices+sent%updatedServices] = slice
		}
		if codes, body, err := f.health(); codes != "200 200" {
			t.Fatalf("during the updates health is %s %s, %v", codes, body, err)
		}
	}
	want, _, err := offline.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, f.g.config(t))
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the kernel has the last state", func() error { return labtest.TableError(f.conn, want) })
	took := time.Since(begin)
	made, grown := f.syncs(t)-syncs, residentBytes(t, p)-resident
	t.Logf("%d updates in %d s; after %v all were applied, with %d syncs; the proxy has grown by %d MiB", sent, updateSeconds, took.Round(time.Millisecond), made, grown>>20)
	if full := updatesPerSecond * updateSeconds; sent > full*9/10 && made > sent/2 {
		t.Errorf("%d syncs for %d updates, want them merged; see syncloop", made, sent)
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
	service, slice := outageObjects(fmt.Sprintf("10.244.1.%d", 1+n/updatedServices%200), "10.244.1.201")
	service.Name, slice.Name = fmt.Sprint("updated-", i), fmt.Sprint("updated-", i)
	slice.Labels[discoveryv1.LabelServiceName] = service.Name
	service.Spec.ClusterIP = fmt.Sprint("10.96.7.", i+1)
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	return service, slice
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

// residentBytes is how much memory a process has.
func residentBytes(t *testing.T, p *labtest.Process) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
