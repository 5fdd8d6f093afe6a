package v1alpha2

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
)

// lossFields returns the fields of losses, sorted.
func lossFields(losses []Loss) []string {
	fields := []string{}
	for _, loss := range losses {
		fields = append(fields, loss.Field)
	}
	slices.Sort(fields)
	return fields
}

// v1alpha1ThereAndBack checks that a round trip through v1alpha2 keeps every field that was set, except
// for those listed as lost, and that it loses each of these.
func v1alpha1ThereAndBack(example map[string]any) func(*rapid.T) {
	return func(t *rapid.T) {
		in := decode[kubeproxyv1alpha1.KubeProxyConfiguration](t, draw(t, example, ""))
		before := flatten(t, in)
		middle, losses := FromV1alpha1(in)
		back, backLosses := ToV1alpha1(middle)
		if len(backLosses) > 0 {
			t.Errorf("v1alpha1 cannot express what came from v1alpha1: %v", backLosses)
		}
		if diff := cmp.Diff(before, flatten(t, in)); diff != "" {
			t.Errorf("the input was changed:\n%s", diff)
		}
		changed := []string{}
		after := flatten(t, back)
		for path, value := range before {
			if !isZero(value) && !reflect.DeepEqual(after[path], value) {
				changed = append(changed, path)
			}
		}
		slices.Sort(changed)
		if diff := cmp.Diff(changed, lossFields(losses)); diff != "" {
			t.Errorf("(-changed +listed as lost):\n%s", diff)
		}
		again, _ := FromV1alpha1(back)
		SetDefaults(middle)
		SetDefaults(again)
		if diff := cmp.Diff(flatten(t, middle), flatten(t, again)); diff != "" {
			t.Errorf("it means something else after a round trip:\n%s", diff)
		}
	}
}

// v1alpha2ThereAndBack checks that a round trip through v1alpha1 keeps every field, with defaults filled
// in, except for those listed as lost.
func v1alpha2ThereAndBack(example map[string]any) func(*rapid.T) {
	return func(t *rapid.T) {
		in := decode[KubeProxyConfiguration](t, draw(t, example, ""))
		unchanged := flatten(t, in)
		middle, losses := ToV1alpha1(in)
		back, backLosses := FromV1alpha1(middle)
		if len(backLosses) > 0 {
			t.Errorf("v1alpha2 cannot express what came from v1alpha2: %v", backLosses)
		}
		if diff := cmp.Diff(unchanged, flatten(t, in)); diff != "" {
			t.Errorf("the input was changed:\n%s", diff)
		}
		SetDefaults(in)
		SetDefaults(back)
		before, after := flatten(t, in), flatten(t, back)
		changed := []string{}
		for path := range before {
			if !reflect.DeepEqual(before[path], after[path]) {
				changed = append(changed, path)
			}
		}
		for path := range after {
			if _, ok := before[path]; !ok {
				changed = append(changed, path)
			}
		}
		slices.Sort(changed)
		if diff := cmp.Diff(changed, lossFields(losses)); diff != "" {
			t.Errorf("(-changed +listed as lost):\n%s", diff)
		}
	}
}

func TestConversion(t *testing.T) {
	t.Run("v1alpha1 there and back loses only what is listed", testV1alpha1ThereAndBackLosesOnlyWhatIsListed)
	t.Run("v1alpha2 there and back loses only what is listed", testV1alpha2ThereAndBackLosesOnlyWhatIsListed)
	t.Run("examples set every field", testExamplesSetEveryField)
	t.Run("converted documents share nothing", testConvertedDocumentsShareNothing)
}

func testV1alpha1ThereAndBackLosesOnlyWhatIsListed(t *testing.T) {
	rapid.Check(t, v1alpha1ThereAndBack(example(t, "every-field-set")))
}

func testV1alpha2ThereAndBackLosesOnlyWhatIsListed(t *testing.T) {
	rapid.Check(t, v1alpha2ThereAndBack(example(t, "v1alpha2-every-field-set")))
}

func FuzzV1alpha1ThereAndBack(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(v1alpha1ThereAndBack(example(f, "every-field-set"))))
}

func FuzzV1alpha2ThereAndBack(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(v1alpha2ThereAndBack(example(f, "v1alpha2-every-field-set"))))
}

// The tests above are worth something only if the examples have every field.
func testExamplesSetEveryField(t *testing.T) {
	// No proxy has settings of other components.
	except := []string{"logging.vmodule", "logging.options", "creationTimestamp"}
	for _, tt := range []struct {
		name string
		of   reflect.Type
	}{
		{"every-field-set", reflect.TypeFor[kubeproxyv1alpha1.KubeProxyConfiguration]()},
		{"v1alpha2-every-field-set", reflect.TypeFor[KubeProxyConfiguration]()},
	} {
		tree := flatten(t, example(t, tt.name))
		for _, path := range fieldPaths(tt.of, "") {
			set := slices.ContainsFunc(except, func(e string) bool { return strings.HasPrefix(path, e) })
			for leaf, value := range tree {
				set = set || strings.HasPrefix(leaf, path) && (!isZero(value) || value == false)
			}
			if !set {
				t.Errorf("%s does not set %s", tt.name, path)
			}
		}
	}
}

// fieldPaths returns the JSON paths of a struct's fields, and of those in structs of this group.
func fieldPaths(of reflect.Type, prefix string) (out []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(prefix+"."+name, ".")
		if f.Anonymous {
			path = prefix
		}
		if f.Type.Kind() == reflect.Struct && !strings.HasSuffix(f.Type.Name(), "Duration") {
			out = append(out, fieldPaths(f.Type, path)...)
		} else {
			out = append(out, path)
		}
	}
	return out
}

func testConvertedDocumentsShareNothing(t *testing.T) {
	score, bit := int32(1), int32(2)
	in := &kubeproxyv1alpha1.KubeProxyConfiguration{
		OOMScoreAdj:       &score,
		NodePortAddresses: []string{"primary"},
		FeatureGates:      map[string]bool{"AllAlpha": true},
		IPTables:          kubeproxyv1alpha1.KubeProxyIPTablesConfiguration{MasqueradeBit: &bit},
	}
	before := in.DeepCopy()
	change := func(c *KubeProxyConfiguration) {
		*c.Linux.OOMScoreAdj, *c.IPTables.MasqueradeBit = 99, 99
		c.NodePortAddresses[0], c.FeatureGates["AllAlpha"] = "changed", false
	}
	middle, _ := FromV1alpha1(in)
	back, _ := ToV1alpha1(middle)
	change(middle)
	for name, c := range map[string]*kubeproxyv1alpha1.KubeProxyConfiguration{"the input": in, "what was converted back": back} {
		if diff := cmp.Diff(flatten(t, before)["oomScoreAdj"], flatten(t, c)["oomScoreAdj"]); diff != "" {
			t.Errorf("%s has changed:\n%s", name, diff)
		}
		if c.NodePortAddresses[0] != "primary" || !c.FeatureGates["AllAlpha"] || *c.IPTables.MasqueradeBit != 2 {
			t.Errorf("%s has changed: %+v", name, c)
		}
	}
	if *middle.IPVS.MasqueradeBit != 2 {
		t.Error("ipvs.masqueradeBit is that of iptables")
	}
}

// leaves has the values of a document by their paths. What is null or empty is not there.
type leaves map[string]any

func flatten(t rapid.TB, document any) leaves {
	t.Helper()
	data, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	out := leaves{}
	out.add("", tree)
	return out
}

func (l leaves) add(path string, tree any) {
	switch tree := tree.(type) {
	case nil:
	case map[string]any:
		for name, value := range tree {
			l.add(strings.TrimPrefix(path+"."+name, "."), value)
		}
	case []any:
		for i, value := range tree {
			l.add(fmt.Sprintf("%s[%d]", path, i), value)
		}
	default:
		l[path] = tree
	}
}

// isZero reports whether a value cannot be told from one that was not set.
func isZero(value any) bool {
	return value == nil || value == "" || value == "0s" || reflect.ValueOf(value).IsZero()
}

// example reads a document of the corpus in which every field is set.
func example(t testing.TB, name string) map[string]any {
	t.Helper()
	c := corpus.Get(t, name)
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(c.File(corpus.Input)), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// draw makes a document out of an example by leaving out and changing values.
func draw(t *rapid.T, example any, path string) any {
	if object, ok := example.(map[string]any); ok {
		out := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if value := draw(t, object[name], path+"."+name); value != nil {
				out[name] = value
			}
		}
		return out
	}
	if path == ".apiVersion" || path == ".kind" {
		return example
	}
	choices := append([]any{nil, nil, example}, others(path, example)...)
	return choices[rapid.IntRange(0, len(choices)-1).Draw(t, path)]
}

// others returns values that a field may have beside the one in the example.
func others(path string, value any) []any {
	switch value := value.(type) {
	case bool:
		return []any{!value}
	case float64:
		return []any{0, 1, 2}
	case []any:
		return []any{[]any{}, value[:1]}
	case string:
		switch {
		case path == ".mode":
			return []any{"", "iptables", "ipvs", "kernelspace"}
		case strings.HasSuffix(path, "Period"), strings.HasSuffix(path, "Timeout"):
			return []any{"0s", "1s", "7s"}
		case strings.HasSuffix(path, "flushFrequency"):
			return nil
		case path == ".bindAddress":
			return []any{"", "0.0.0.0", "::"}
		case path == ".clusterCIDR":
			return []any{"", "10.0.0.0/8"}
		}
		return []any{"", value + "x"}
	}
	return nil
}

func decode[T any](t *rapid.T, tree any) *T {
	data, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatal(err)
	}
	return out
}
