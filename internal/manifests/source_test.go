package manifests

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/model"
)

func TestSource(t *testing.T) {
	t.Run("changes on disk reach the sink", testChangesOnDiskReachTheSink)
	t.Run("a bad file keeps its last good objects", testBadFileKeepsItsLastGoodObjects)
	t.Run("a bad file at the start is waited for", testBadFileAtTheStartIsWaitedFor)
	t.Run("a missing directory at the start is waited for", testMissingDirectoryAtTheStartIsWaitedFor)
	t.Run("an emptied directory is not believed", testEmptiedDirectoryIsNotBelieved)
	t.Run("an unwatched directory is read now and then", testUnwatchedDirectoryIsReadNowAndThen)
	t.Run("a renamed Service is believed", testRenamedServiceIsBelieved)
	t.Run("another storage is not believed", testAnotherStorageIsNotBelieved)
	t.Run("an empty directory at the start is not believed", testEmptyDirectoryAtTheStartIsNotBelieved)
	t.Run("the first of two files with one object counts", testFirstOfTwoFilesWithOneObjectCounts)
	t.Run("a ConfigMap volume is followed", testConfigMapVolumeIsFollowed)
	t.Run("a directory that is a swapped link is followed", testDirectoryThatIsASwappedLinkIsFollowed)
	t.Run("a directory that goes away keeps its objects until it is back", testDirectoryThatGoesAwayKeepsItsObjectsUntilItIsBack)
	t.Run("a burst of writes is read once", testBurstOfWritesIsReadOnce)
	t.Run("a rescan finds what the kernel does not tell", testRescanFindsWhatTheKernelDoesNotTell)
	t.Run("a file that is renamed beside a read is not read as deleted", testRenamedFileIsNotReadAsDeleted)
	t.Run("a file that is written at the start is waited for", testFileWrittenAtTheStartIsWaitedFor)
	t.Run("a file that changes all the time delays the start only so long", testFileThatChangesAllTheTimeDelaysTheStartOnlySoLong)
	t.Run("old files do not delay the start", testOldFilesDoNotDelayTheStart)
	t.Run("a blank file at the start is waited for", testBlankFileAtTheStartIsWaitedFor)
	t.Run("a bad file at the start is named before an empty directory", testBadFileAtTheStartIsNamedBeforeAnEmptyDirectory)
}

func testChangesOnDiskReachTheSink(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n"+sliceYAML("web", "10.0.0.1"))
	writeFile(t, dir, "other.yaml", sliceYAML("other", "10.0.0.9"))
	writeFile(t, dir, "notes.txt", "not a manifest")
	sink, _ := start(t, dir)
	other := "EndpointSlice default/other-1"
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1", other: "10.0.0.9"})
	sink.takeEvents()

	t.Log("only the object that changed is published")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n"+sliceYAML("web", "10.0.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.2", other: "10.0.0.9"})
	if diff := cmp.Diff([]string{"set EndpointSlice default/web-1"}, sink.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	t.Log("an object that moves to another file is not published again")
	writeFile(t, dir, "slice.yml", sliceYAML("web", "10.0.0.2"))
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.9"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.9", "EndpointSlice default/web-1": "10.0.0.2", other: "10.0.0.9"})
	if diff := cmp.Diff([]string{"set Service default/web"}, sink.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	t.Log("a deleted file takes its objects along")
	if err := os.Remove(filepath.Join(dir, "slice.yml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.9", other: "10.0.0.9"})

	t.Log("a file renamed over another replaces it")
	writeFile(t, dir, ".web.yaml.tmp", serviceYAML("web", "10.96.0.3"))
	if err := os.Rename(filepath.Join(dir, ".web.yaml.tmp"), filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.3", other: "10.0.0.9"})
}

func testBadFileKeepsItsLastGoodObjects(t *testing.T) {
	dir := t.TempDir()
	good := serviceYAML("web", "10.96.0.1") + "---\n" + sliceYAML("web", "10.0.0.1")
	writeFile(t, dir, "web.yaml", good)
	sink, log := start(t, dir)
	web := map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1"}
	sink.waitFor(t, web)

	writeFile(t, dir, "web.yaml", good[:len(good)-3]) // cut inside "[10.0.0.1]"
	log.waitFor(t, "web.yaml: document 2 (line 9): yaml: line ")
	writeFile(t, dir, "web.yaml", "")
	log.waitFor(t, "web.yaml: the file is empty")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"  prots: []\n")
	log.waitFor(t, `unknown field \"spec.prots\"`)

	t.Log("other files go on while one is bad")
	writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10")+"---\n"+sliceYAML("dns", "10.0.0.9"))
	dns := map[string]string{"Service default/dns": "10.96.0.10", "EndpointSlice default/dns-1": "10.0.0.9"}
	maps.Copy(web, dns)
	sink.waitFor(t, web)
	if n := log.count("unknown field"); n != 1 {
		t.Errorf("the same error was logged %d times, want once", n)
	}

	t.Log("once valid, the file takes over")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.2"))
	dns["Service default/web"] = "10.96.0.2"
	sink.waitFor(t, dns)
	log.waitFor(t, "All manifests are good again")
}

func testBadFileAtTheStartIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "gen.yaml", serviceYAML("web", "10.96.0.1")+"---\nkind: [\n")
	writeFile(t, dir, "b.yaml", serviceYAML("dns", "10.96.0.10")+"---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: apps/v1\nkind: Deployment\n")
	symlink(t, "/nowhere", filepath.Join(dir, "link.yaml"))
	failing := make(chan bool, 10)
	sink, log := start(t, dir, func(s *Source) {
		s.Rescan = 20 * time.Millisecond
		s.OnFailing = func(_ string, yes bool) { failing <- yes }
	})
	const cause = "gen.yaml: document 2 (line 9): yaml: line 10: did not find expected node content"
	sink.waitForReason(t, "manifests: "+cause+" (and 1 more)")
	log.waitForCount(t, cause, 3) // with back-off, from 20 ms
	log.waitFor(t, "/link.yaml: no such file or directory")
	if !await.Receive(t, "OnFailing", failing) {
		t.Error("OnFailing was told false first")
	}
	if events := slices.DeleteFunc(sink.takeEvents(), func(e string) bool { return e == "waiting" }); len(events) > 0 {
		t.Errorf("the sink was told %v before every file was read", events)
	}
	if n := log.count("Ignoring objects of a kind"); n != 1 {
		t.Errorf("ignored kinds were logged %d times, want once", n)
	}

	writeFile(t, dir, "gen.yaml", serviceYAML("web", "10.96.0.1"))
	sink.waitForReason(t, "manifests: stat "+filepath.Join(dir, "link.yaml")+": no such file or directory")
	if err := os.Remove(filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "Service default/dns": "10.96.0.10"})
	if await.Receive(t, "OnFailing", failing) {
		t.Error("OnFailing was told true again")
	}
}

func testEmptiedDirectoryIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	writeFile(t, dir, "slice.yaml", sliceYAML("web", "10.0.0.1"))
	guard := &model.ListGuard{Patience: 2 * time.Second}
	sink, log := start(t, dir, func(s *Source) { s.Rescan, s.Guard = 20*time.Millisecond, guard })
	all := map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1"}
	sink.waitFor(t, all)
	for _, name := range []string{"web.yaml", "slice.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const lacks = ": the source lacks 1 of 1; what it lacks stays until "
	for _, resource := range []string{"services", "endpointslices"} {
		await.True(t, "a hold", func() bool { return slices.Contains(guard.Held(), resource+lacks+"2s after it has others") })
	}
	time.Sleep(100 * time.Millisecond) // several reads
	sink.waitFor(t, all)
	if n := log.count("Not believing what a list lacks"); n != 2 {
		t.Errorf("%d errors, want one for each resource", n)
	}

	t.Log("with the first Service begins the end")
	writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10"))
	log.waitFor(t, lacks[2:]+"2") // a year
	sink.waitFor(t, map[string]string{"Service default/dns": "10.96.0.10", "EndpointSlice default/web-1": "10.0.0.1"})
	if !guard.Believe() {
		t.Error("no slice was held")
	}
	sink.waitFor(t, map[string]string{"Service default/dns": "10.96.0.10"})
	if held := guard.Held(); len(held) > 0 {
		t.Errorf("held: %q", held)
	}
}

// A Service that has the ClusterIP of another one takes its place, and so do the files of the directory.
func testUnwatchedDirectoryIsReadNowAndThen(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	sink, log := newRecorder(), &logLines{}
	source := New(dir)
	source.Rescan = 10 * time.Millisecond
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), log.logger()))
	done := make(chan error, 2)
	go func() {
		done <- process.Behind(process.Calls(process.Refused(unix.EMFILE), unix.SYS_INOTIFY_INIT1), func(*process.Call) process.Verdict { return process.Pass },
			func() { done <- source.Run(ctx, sink) })
	}()
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
	if log.count("Cannot watch the manifest directory, reading it now and then") != 1 {
		t.Error("the directory is watched, or the log does not say that it is not")
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func testRenamedServiceIsBelieved(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	sink, log := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	writeFile(t, dir, "web.yaml", serviceYAML("shop", "10.96.0.1"))
	sink.waitFor(t, map[string]string{"Service default/shop": "10.96.0.1"})
	if n := log.count("Not believing what a list lacks"); n > 0 {
		t.Error("a Service that was renamed is held")
	}
}

func testAnotherStorageIsNotBelieved(t *testing.T) {
	withUID := func(uid string) string {
		return strings.Replace(serviceYAML("kubernetes", "10.96.0.1"), "metadata:\n", "metadata:\n  uid: "+uid+"\n", 1)
	}
	dir, guard := t.TempDir(), &model.ListGuard{}
	writeFile(t, dir, "all.yaml", withUID("one")+"---\n"+serviceYAML("a", "10.96.0.2")+"---\n"+serviceYAML("b", "10.96.0.3"))
	sink, _ := start(t, dir, func(s *Source) { s.Guard = guard })
	all := map[string]string{"Service default/kubernetes": "10.96.0.1", "Service default/a": "10.96.0.2", "Service default/b": "10.96.0.3"}
	sink.waitFor(t, all)
	writeFile(t, dir, "all.yaml", withUID("two")+"---\n"+serviceYAML("a", "10.96.0.2"))
	await.True(t, "a hold", func() bool {
		return slices.ContainsFunc(guard.Held(), func(reason string) bool { return strings.Contains(reason, "another cluster") })
	})
	sink.waitFor(t, all)
}

func testEmptyDirectoryAtTheStartIsNotBelieved(t *testing.T) {
	for name, believe := range map[string]func(t *testing.T, dir string, guard *model.ListGuard) map[string]string{
		"until there is a Service": func(t *testing.T, dir string, _ *model.ListGuard) map[string]string {
			writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10")+"---\n"+sliceYAML("dns", "10.0.0.1"))
			return map[string]string{"Service default/dns": "10.96.0.10", "EndpointSlice default/dns-1": "10.0.0.1"}
		},
		"until somebody says so": func(_ *testing.T, _ string, guard *model.ListGuard) map[string]string {
			guard.Believe()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			guard := &model.ListGuard{Before: func(string, bool) bool { return true }}
			sink, _ := start(t, dir, func(s *Source) { s.Guard = guard })
			sink.waitForReason(t, "services: the source has none, but the rules in force have some")
			if events := slices.DeleteFunc(sink.takeEvents(), func(e string) bool { return e == "waiting" }); len(events) > 0 {
				t.Errorf("the sink was told %v", events)
			}
			sink.waitFor(t, believe(t, dir, guard))
		})
	}
}

func testFirstOfTwoFilesWithOneObjectCounts(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "b.yaml", serviceYAML("web", "10.96.0.2"))
	writeFile(t, dir, "a.yaml", serviceYAML("web", "10.96.0.1"))
	sink, log := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	log.waitFor(t, "b.yaml: Service default/web is already in a.yaml")

	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
}

// symlink points link at target, replacing what link was in one step.
func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".tmp", link); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, elements ...string) string {
	t.Helper()
	dir := filepath.Join(elements...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testConfigMapVolumeIsFollowed(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, mkdir(t, dir, "..2024_1"), "web.yaml", serviceYAML("web", "10.96.0.1"))
	symlink(t, "..2024_1", filepath.Join(dir, "..data"))
	symlink(t, "..data/web.yaml", filepath.Join(dir, "web.yaml"))
	sink, _ := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})

	writeFile(t, mkdir(t, dir, "..2024_2"), "web.yaml", serviceYAML("web", "10.96.0.2"))
	symlink(t, "..2024_2", filepath.Join(dir, "..data"))
	if err := os.RemoveAll(filepath.Join(dir, "..2024_1")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
}

func testDirectoryThatIsASwappedLinkIsFollowed(t *testing.T) {
	top := t.TempDir()
	writeFile(t, mkdir(t, top, "one"), "web.yaml", serviceYAML("web", "10.96.0.1"))
	writeFile(t, mkdir(t, top, "two"), "web.yaml", serviceYAML("web", "10.96.0.2"))
	link := filepath.Join(top, "current")
	symlink(t, "one", link)
	sink, _ := start(t, link)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})

	symlink(t, "two", link)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
	writeFile(t, filepath.Join(top, "two"), "web.yaml", serviceYAML("web", "10.96.0.3"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.3"})
}

func testDirectoryThatGoesAwayKeepsItsObjectsUntilItIsBack(t *testing.T) {
	top := t.TempDir()
	dir := mkdir(t, top, "manifests")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	failing := make(chan bool, 10)
	sink, log := start(t, dir, func(s *Source) {
		s.OnFailing = func(_ string, yes bool) { failing <- yes }
	})
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})

	if err := os.Rename(dir, filepath.Join(top, "away")); err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, "no such file or directory")
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	if !await.Receive(t, "OnFailing", failing) {
		t.Error("OnFailing was told false first")
	}

	// Under another name first, so that the directory is never seen empty.
	writeFile(t, mkdir(t, top, "next"), "web.yaml", serviceYAML("web", "10.96.0.2"))
	if err := os.Rename(filepath.Join(top, "next"), dir); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
	if await.Receive(t, "OnFailing", failing) {
		t.Error("OnFailing was told true again")
	}
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.3"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.3"})
}

func testBurstOfWritesIsReadOnce(t *testing.T) {
	dir := t.TempDir()
	sink, _ := start(t, dir)
	sink.waitFor(t, map[string]string{})
	sink.takeEvents()
	for range 50 {
		writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	}
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
	if events := sink.takeEvents(); len(events) > 3 {
		t.Errorf("a burst of writes made %d events: %v", len(events), events)
	}
}

func testRescanFindsWhatTheKernelDoesNotTell(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	writeFile(t, outside, "web.yaml", serviceYAML("web", "10.96.0.1"))
	symlink(t, filepath.Join(outside, "web.yaml"), filepath.Join(dir, "web.yaml"))
	source := New(dir)
	source.Rescan = 20 * time.Millisecond
	sink := newRecorder()
	go func() { _ = source.Run(t.Context(), sink) }()
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	writeFile(t, outside, "web.yaml", serviceYAML("web", "10.96.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
}

func testMissingDirectoryAtTheStartIsWaitedFor(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "manifests")
	writeFile(t, top, "manifests", "a file in its place")
	sink, log := start(t, dir, func(s *Source) { s.Rescan = 20 * time.Millisecond })
	log.waitFor(t, dir+": not a directory")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	sink.waitForReason(t, "manifests: open "+dir+": no such file or directory")
	log.waitFor(t, dir+": no such file or directory")
	writeFile(t, mkdir(t, top, "manifests"), "web.yaml", serviceYAML("web", "10.96.0.1"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
}

func testRenamedFileIsNotReadAsDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := [2]string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")}
	writeFile(t, dir, "a.yaml", serviceYAML("web", "10.96.0.1"))
	// Other files make the time between listing and reading longer.
	for i := range 20 {
		writeFile(t, dir, fmt.Sprintf("0-%d.yaml", i), serviceYAML(fmt.Sprintf("other-%d", i), "10.96.1.1"))
	}
	var lasting directory
	if errs := lasting.refresh(dir); len(errs) > 0 {
		t.Fatal(errs)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := os.Rename(names[i&1], names[i&1^1]); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(20 * time.Microsecond)
		}
	}()
	defer func() { close(stop); <-stopped }()

	hasWeb := func(d *directory) bool {
		objects, _ := d.objects()
		return hasObject(objects, "web")
	}
	complete, lacking, lost := 0, 0, 0
	for range 500 {
		var first directory
		first.refresh(dir)
		switch {
		case hasWeb(&first):
			complete++
		case len(first.missing) == 0:
			lacking++
		}
		if lasting.refresh(dir); !hasWeb(&lasting) {
			lost++
		}
	}
	if complete == 0 || lacking > 0 || lost > 0 {
		t.Errorf("of 500 first reads %d had the file and %d lacked it without an error; of as many later ones %d lost it", complete, lacking, lost)
	}
}

// hasObject reports whether some object has that name.
func hasObject(objects map[id]metav1.Object, name string) bool {
	for id := range objects {
		if id.name == name {
			return true
		}
	}
	return false
}

func testFileWrittenAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n")
	sink, _ := start(t, dir, func(s *Source) { s.Quiet = 2 * time.Second })
	time.Sleep(200 * time.Millisecond) // a source that does not wait reads now
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n"+sliceYAML("web", "10.0.0.1"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1"})
	want := []string{"set Service default/web", "set EndpointSlice default/web-1", "synced"}
	if diff := cmp.Diff(want, sink.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func testFileThatChangesAllTheTimeDelaysTheStartOnlySoLong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		for ctx.Err() == nil {
			soon := time.Now().Add(50 * time.Millisecond) // counts for longer when this goroutine is late
			if err := os.Chtimes(filepath.Join(dir, "web.yaml"), soon, soon); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	defer func() { cancel(); <-touched }()
	sink, _ := start(t, dir, func(s *Source) { s.Quiet = 100 * time.Millisecond })
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
}

func testOldFilesDoNotDelayTheStart(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1"))
	at := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"web.yaml", "."} {
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	sink, _ := start(t, dir, func(s *Source) { s.Quiet = time.Hour })
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
}

func testBlankFileAtTheStartIsWaitedFor(t *testing.T) {
	for name, mend := range map[string]func(t *testing.T, dir string){
		"until it is filled": func(t *testing.T, dir string) { writeFile(t, dir, "web.yaml", "# none yet\n") },
		"until it is deleted": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10"))
			writeFile(t, dir, "web.yaml", " \n")
			sink, _ := start(t, dir)
			sink.waitForReason(t, "manifests: web.yaml: the file is empty; write its objects or delete it (until then the last ones stay)")
			mend(t, dir)
			sink.waitFor(t, map[string]string{"Service default/dns": "10.96.0.10"})
		})
	}
}

func testBadFileAtTheStartIsNamedBeforeAnEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	sink, _ := start(t, dir, func(s *Source) { s.Guard = &model.ListGuard{Before: func(string, bool) bool { return true }} })
	const none = "services: the source has none, but the rules in force have some"
	sink.waitForReason(t, none)
	writeFile(t, dir, "web.yaml", "kind: [\n")
	sink.waitForReason(t, "manifests: web.yaml: document 1 (line 1): yaml: line 1: did not find expected node content")

	t.Log("without the file, the directory is empty again")
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	sink.waitForReason(t, none)
	writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10")+"---\n"+sliceYAML("dns", "10.0.0.1"))
	sink.waitFor(t, map[string]string{"Service default/dns": "10.96.0.10", "EndpointSlice default/dns-1": "10.0.0.1"})
}
