package manifests

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSource(t *testing.T) {
	t.Run("changes on disk reach the sink", testChangesOnDiskReachTheSink)
	t.Run("a bad file keeps its last good objects", testBadFileKeepsItsLastGoodObjects)
	t.Run("a bad file at the start does not stop the rest", testBadFileAtStartDoesNotStopTheRest)
	t.Run("the first of two files with one object counts", testFirstOfTwoFilesWithOneObjectCounts)
	t.Run("a ConfigMap volume is followed", testConfigMapVolumeIsFollowed)
	t.Run("a directory that is a swapped link is followed", testDirectoryThatIsASwappedLinkIsFollowed)
	t.Run("a directory that goes away keeps its objects until it is back", testDirectoryThatGoesAwayKeepsItsObjectsUntilItIsBack)
	t.Run("a burst of writes is read once", testBurstOfWritesIsReadOnce)
	t.Run("a rescan finds what the kernel does not tell", testRescanFindsWhatTheKernelDoesNotTell)
	t.Run("needs a directory", testRunNeedsADirectory)
}

func testChangesOnDiskReachTheSink(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n"+sliceYAML("web", "10.0.0.1"))
	writeFile(t, dir, "notes.txt", "not a manifest")
	sink, _ := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1"})
	sink.takeEvents()

	t.Log("only the object that changed is published")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.1")+"---\n"+sliceYAML("web", "10.0.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.2"})
	if diff := cmp.Diff([]string{"set EndpointSlice default/web-1"}, sink.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	t.Log("an object that moves to another file is not published again")
	writeFile(t, dir, "slice.yml", sliceYAML("web", "10.0.0.2"))
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.9"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.9", "EndpointSlice default/web-1": "10.0.0.2"})
	if diff := cmp.Diff([]string{"set Service default/web"}, sink.takeEvents()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}

	t.Log("a deleted file takes its objects along")
	if err := os.Remove(filepath.Join(dir, "slice.yml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.9"})

	t.Log("a file renamed over another replaces it")
	writeFile(t, dir, ".web.yaml.tmp", serviceYAML("web", "10.96.0.3"))
	if err := os.Rename(filepath.Join(dir, ".web.yaml.tmp"), filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.3"})
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
	writeFile(t, dir, "dns.yaml", serviceYAML("dns", "10.96.0.10"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1", "EndpointSlice default/web-1": "10.0.0.1", "Service default/dns": "10.96.0.10"})
	if n := log.count("unknown field"); n != 1 {
		t.Errorf("the same error was logged %d times, want once", n)
	}

	t.Log("once valid, the file takes over")
	writeFile(t, dir, "web.yaml", serviceYAML("web", "10.96.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2", "Service default/dns": "10.96.0.10"})
	log.waitFor(t, "All manifests are good again")
}

func testBadFileAtStartDoesNotStopTheRest(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", "kind: Service\n")
	writeFile(t, dir, "b.yaml", serviceYAML("web", "10.96.0.1")+"---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: apps/v1\nkind: Deployment\n")
	sink, log := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})
	log.waitFor(t, "a.yaml: document 1 (line 1): Service: no apiVersion")
	if n := log.count("Ignoring objects of a kind"); n != 1 {
		t.Errorf("ignored kinds were logged %d times, want once", n)
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
	sink, log := start(t, dir)
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})

	if err := os.Rename(dir, filepath.Join(top, "away")); err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, "no such file or directory")
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.1"})

	writeFile(t, mkdir(t, top, "manifests"), "web.yaml", serviceYAML("web", "10.96.0.2"))
	sink.waitFor(t, map[string]string{"Service default/web": "10.96.0.2"})
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

func testRunNeedsADirectory(t *testing.T) {
	dir := t.TempDir()
	if err := New(filepath.Join(dir, "missing")).Run(t.Context(), newRecorder()); err == nil {
		t.Error("a directory that does not exist is no error")
	}
	writeFile(t, dir, "file.yaml", "")
	if err := New(filepath.Join(dir, "file.yaml")).Run(t.Context(), newRecorder()); err == nil {
		t.Error("a file in place of a directory is no error")
	}
}
