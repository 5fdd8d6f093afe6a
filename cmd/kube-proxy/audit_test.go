package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// audit returns the rows below a heading of the section that goes through all fields.
func audit(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	_, text, _ := strings.Cut(readDocs(t), "<!-- audit -->\n")
	text, _, ok := strings.Cut(text, "<!-- end of audit -->\n")
	_, text, found := strings.Cut(text, "### "+heading+"\n")
	if !ok || !found {
		t.Fatalf("%s has no audit of %q", docs, heading)
	}
	text, _, _ = strings.Cut(text, "\n### ")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `") {
			rows = append(rows, strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"))
		}
	}
	return rows
}

var quoted = regexp.MustCompile("`([^`]+)`")

// namesIn returns what stands in backquotes in a cell.
func namesIn(cell string) (names []string) {
	for _, match := range quoted.FindAllStringSubmatch(cell, -1) {
		names = append(names, match[1])
	}
	return names
}

func testObjectFieldsAreAudited(t *testing.T) {
	for heading, fields := range map[string][]string{
		"Service":                objectFields(reflect.TypeFor[corev1.Service](), ""),
		"EndpointSlice":          objectFields(reflect.TypeFor[discoveryv1.EndpointSlice](), ""),
		"ServiceCIDR and Node":   objectFields(reflect.TypeFor[networkingv1.ServiceCIDR](), "ServiceCIDR: "),
		"KubeProxyConfiguration": fieldsOf(reflect.TypeFor[kubeproxyv1alpha1.KubeProxyConfiguration](), ""),
	} {
		t.Run(heading+": every field has a row", func(t *testing.T) {
			var named []string
			for _, row := range audit(t, heading) {
				named = append(named, namesIn(row[0])...)
			}
			for _, field := range fields {
				if !slices.ContainsFunc(named, func(name string) bool { return covers(name, field) }) {
					t.Errorf("%s does not go through %s", docs, field)
				}
			}
			for _, name := range named {
				known := slices.ContainsFunc(fields, func(field string) bool { return covers(name, field) })
				if !known && !strings.Contains(name, "metadata.") && !strings.HasPrefix(name, "Node: ") {
					t.Errorf("%s goes through %s, which is no field", docs, name)
				}
			}
		})
	}
	t.Run("what rows name exists", func(t *testing.T) {
		known := testsAndCases(t)
		for _, heading := range []string{"Service", "EndpointSlice", "ServiceCIDR and Node", "KubeProxyConfiguration"} {
			for _, row := range audit(t, heading) {
				for _, name := range namesIn(row[len(row)-1]) {
					// TestDocs of package integration looks for subtests.
					if test, _, _ := strings.Cut(name, "/"); !known[test] {
						t.Errorf("%s: %s is neither a test nor a golden case", row[0], name)
					}
				}
			}
		}
	})
}

// leaves are types whose fields say nothing to a proxy, or that are one value in a document.
var leaves = []reflect.Type{
	reflect.TypeFor[metav1.ObjectMeta](), reflect.TypeFor[metav1.Condition](), reflect.TypeFor[corev1.ObjectReference](),
	reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[corev1.PortStatus](),
}

// objectFields returns the paths of all fields of an object below its metadata, with []
// after the name of a list of objects.
func objectFields(typ reflect.Type, path string) (out []string) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "metadata" {
			continue
		}
		element, suffix := field.Type, ""
		if element.Kind() == reflect.Slice {
			element, suffix = element.Elem(), "[]"
		}
		if element.Kind() == reflect.Pointer {
			element = element.Elem()
		}
		if element.Kind() != reflect.Struct || slices.Contains(leaves, element) {
			out = append(out, path+name)
			continue
		}
		out = append(out, objectFields(element, path+name+suffix+".")...)
	}
	return out
}

// testsAndCases returns the names of all test functions and golden cases of the module.
func testsAndCases(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, match := range function.FindAllStringSubmatch(string(data), -1) {
			known[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range flows.Cases(t) {
		known[c.Name] = true
	}
	if len(known) < 200 {
		t.Fatalf("only %v", slices.Collect(maps.Keys(known)))
	}
	return known
}
