package manifests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoad(t *testing.T) {
	t.Run("reads all kinds", testLoadReadsAllKinds)
	t.Run("says where an error is", testLoadErrorsSayWhere)
	t.Run("returns all errors", testLoadReturnsAllErrors)
}

func testLoadReadsAllKinds(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "1.yaml", "# only a comment\n---\n"+serviceYAML("web", "10.96.0.1")+"---\n\n---\n"+sliceYAML("web", "10.0.0.1")+"...\n")
	writeFile(t, dir, "2.json", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1","namespace":"nonsense"},"spec":{"podCIDR":"10.0.0.0/24"}}`)
	writeFile(t, dir, "3.yml", "--- {apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: main}, spec: {cidrs: [10.96.0.0/16]}}\n")
	writeFile(t, dir, "4.yaml", `
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- {apiVersion: v1, kind: Service, metadata: {name: dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}
`)
	writeFile(t, dir, "5.json", `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"name":"api"},"spec":{"clusterIP":"10.96.0.11"}}]}`)
	objects, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecorder()
	objects.Feed(sink)
	sink.waitFor(t, map[string]string{
		"Service default/web":         "10.96.0.1",
		"EndpointSlice default/web-1": "10.0.0.1",
		"Node node-1":                 "10.0.0.0/24",
		"ServiceCIDR main":            "10.96.0.0/16",
		"Service kube-system/dns":     "10.96.0.10",
		"Service default/api":         "10.96.0.11",
	})
}

func testLoadErrorsSayWhere(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
	}{
		{
			"a field that does not exist",
			serviceYAML("a", "10.96.0.1") + "---\n" + serviceYAML("web", "10.96.0.2") + "    tragetPort: 1\n",
			`f.yaml: document 2 (line 9): Service default/web: unknown field "spec.ports[0].tragetPort"`,
		},
		{
			"two fields that do not exist",
			serviceYAML("web", "10.96.0.1") + "  a: 1\n  b: 2\n",
			`f.yaml: document 1 (line 1): Service default/web: unknown field "spec.a"; unknown field "spec.b"`,
		},
		{
			"a field in the wrong case",
			"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterip: 10.96.0.1}\n",
			`f.yaml: document 1 (line 1): Service default/web: unknown field "spec.clusterip"`,
		},
		{
			"a string for a number",
			"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: eighty}]}\n",
			`f.yaml: document 1 (line 1): Service default/web: json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32`,
		},
		{
			"a field given twice",
			serviceYAML("web", "10.96.0.1") + "  clusterIP: 10.96.0.2\n",
			`f.yaml: document 1 (line 1): yaml: unmarshal errors: line 9: key "clusterIP" already set in map`,
		},
		{
			"an object without a name",
			"apiVersion: v1\nkind: Service\n",
			`f.yaml: document 1 (line 1): Service default/: metadata.name is missing`,
		},
		{
			"no kind",
			"# text\n---\nhello: 1\n",
			`f.yaml: document 1 (line 2): no kind`,
		},
		{
			"an item of a List",
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: node-1}}\n- {apiVersion: v1, kind: Node, metadata: {nam: node-2}}\n",
			`f.yaml: document 1 (line 1): items[1]: Node : unknown field "metadata.nam"`,
		},
		{
			"the same object twice",
			serviceYAML("web", "10.96.0.1") + "---\n" + serviceYAML("web", "10.96.0.1"),
			`f.yaml: Service default/web is already in f.yaml, which counts`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, dir, "f.yaml", tc.text)
			_, err := Load(dir)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func testLoadReturnsAllErrors(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", "kind: Service\n---\nkind: [\n")
	writeFile(t, dir, "b.yaml", "kind: Node\n")
	objects, err := Load(dir)
	if got := strings.Split(err.Error(), "\n"); len(got) != 3 || !strings.HasPrefix(got[0], "a.yaml: document 1") {
		t.Errorf("got %q, want 3 errors, the first of a.yaml", got)
	}
	if len(objects.Services) > 0 {
		t.Errorf("bad files gave Services")
	}
	if _, err := Load(dir + "/missing"); err == nil {
		t.Error("a missing directory is no error")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(serviceYAML("web", "10.96.0.1") + "---\n" + sliceYAML("web", "10.0.0.1")))
	f.Add([]byte("{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[{},null,1]}"))
	f.Add([]byte("--- {a: &a [*a]}\n---\n...\n---"))
	f.Add([]byte("\ufeffkind: null\napiVersion: v1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		total := 0
		last := 0
		for _, doc := range documents(text) {
			if doc.number <= last {
				t.Fatalf("document %d after %d", doc.number, last)
			}
			last = doc.number
			total += len(doc.text)
		}
		if total > len(text) {
			t.Fatalf("documents have %d bytes, the file %d", total, len(text))
		}
		file, errs := decodeFile("f.yaml", text)
		for _, e := range errs {
			if !strings.HasPrefix(e.Error(), "f.yaml: document ") {
				t.Fatalf("error does not say where: %v", e)
			}
		}
		for _, o := range file.objects {
			if o.id.name == "" || o.Object.GetName() != o.id.name || o.Object.GetNamespace() != o.id.namespace {
				t.Fatalf("object %v is named %s/%s", o.id, o.Object.GetNamespace(), o.Object.GetName())
			}
		}
	})
}

// writeLarge writes services Services with a slice of two endpoints each, in one file.
func writeLarge(t testing.TB, dir, name string, services int) {
	var b strings.Builder
	for i := range services {
		ip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
		b.WriteString(serviceYAML(fmt.Sprintf("web-%d", i), ip))
		b.WriteString("---\n")
		b.WriteString(sliceYAML(fmt.Sprintf("web-%d", i), ip))
		b.WriteString("- addresses: [10.0.0.9]\n  conditions: {ready: true, serving: true, terminating: false}\n  nodeName: node-2\n---\n")
	}
	writeFile(t, dir, name, b.String())
}

func BenchmarkLoad10000Services(b *testing.B) {
	dir := b.TempDir()
	writeLarge(b, dir, "large.yaml", 10000)
	for b.Loop() {
		objects, err := Load(dir)
		if err != nil || len(objects.Services) != 10000 || len(objects.EndpointSlices) != 10000 {
			b.Fatalf("got %d Services, %d slices, %v", len(objects.Services), len(objects.EndpointSlices), err)
		}
	}
}

func BenchmarkRefreshWithOneOf10000Changed(b *testing.B) {
	dir := b.TempDir()
	writeLarge(b, dir, "large.yaml", 10000)
	var d directory
	if errs := d.refresh(dir); len(errs) > 0 {
		b.Fatal(errs)
	}
	i := 0
	for b.Loop() {
		i++
		writeFile(b, dir, "zzz.yaml", serviceYAML("one", fmt.Sprintf("10.1.0.%d", i&127)))
		if errs := d.refresh(dir); len(errs) > 0 {
			b.Fatal(errs)
		}
		d.objects()
	}
}
