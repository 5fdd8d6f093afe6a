package conversion

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config/corpus"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

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
