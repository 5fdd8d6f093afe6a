package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// node is a part of a JSON schema that has fields.
type node struct {
	Properties           map[string]node `json:"properties"`
	Items                *node           `json:"items"`
	AdditionalProperties json.RawMessage `json:"additionalProperties"`
	Ref                  string          `json:"$ref"`
}

// configSchema is the part of the chart's schema that is about the value config.
func configSchema(t *testing.T) node {
	t.Helper()
	data, err := os.ReadFile("chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions map[string]node `json:"definitions"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	return schema.Definitions["config"]
}

func TestSchema(t *testing.T) {
	t.Run("config has the fields of KubeProxyConfiguration", func(t *testing.T) {
		compareFields(t, "config", reflect.TypeFor[kubeproxyv1alpha1.KubeProxyConfiguration](), configSchema(t))
	})
	t.Run("agrees with the program", testSchemaAgreesWithTheProgram)
}

// compareFields compares the fields of a type with those that the schema knows, at every depth.
func compareFields(t *testing.T, path string, typ reflect.Type, schema node) {
	t.Helper()
	want := fieldsOf(typ)
	if len(want) == 0 {
		if len(schema.Properties) > 0 {
			t.Errorf("%s has fields in the schema, and none in %s", path, typ)
		}
		return
	}
	if string(schema.AdditionalProperties) != "false" {
		t.Errorf("%s: the schema lets misspelt fields pass", path)
	}
	for name, field := range want {
		sub, ok := schema.Properties[name]
		if !ok {
			t.Errorf("the schema has no %s.%s", path, name)
			continue
		}
		if field.Kind() == reflect.Slice && sub.Items != nil {
			field, sub = field.Elem(), *sub.Items
		}
		compareFields(t, path+"."+name, field, sub)
	}
	for name := range schema.Properties {
		if _, ok := want[name]; !ok {
			t.Errorf("the schema has %s.%s, which the configuration does not", path, name)
		}
	}
}

// decodeThemselves are types that are strings or numbers in a document.
var decodeThemselves = []reflect.Type{
	reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration](), reflect.TypeFor[resource.QuantityValue](),
}

// fieldsOf returns the fields of a struct by their names in a document, those of embedded structs included.
func fieldsOf(typ reflect.Type) map[string]reflect.Type {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	out := map[string]reflect.Type{}
	if typ.Kind() != reflect.Struct || slices.Contains(decodeThemselves, typ) {
		return out
	}
	for field := range fields(typ) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" {
			out[name] = field.Type
			continue
		}
		for name, embedded := range fieldsOf(field.Type) {
			out[name] = embedded
		}
	}
	return out
}

func fields(typ reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range typ.NumField() {
			if !yield(typ.Field(i)) {
				return
			}
		}
	}
}

// differences are the documents of the corpus of which the chart thinks otherwise than the program.
var differences = map[string]string{
	// The program refuses them, and the schema cannot see why.
	"bad-cluster-cidrs-of-one-family":    "needs to parse addresses",
	"bad-feature-gate":                   "the program alone knows the names of gates",
	"bad-logging-option-without-gate":    "depends on two fields",
	"bad-metrics-port":                   "a number within a string",
	"bad-min-sync-period":                "compares two fields",
	"bad-min-sync-period-without-a-mode": "compares two fields",
	// The program runs them, and the chart does not.
	"addresses-without-ports":          "the chart takes the containers' ports from the addresses",
	"cluster-cidr-that-does-not-count": "the chart checks a range also where another mode ignores it",
	"every-field-set":                  "the kubeconfig is the chart's",
	"kubeadm-v1.37-as-generated":       "mode iptables is taken as nftables from kubeadm alone",
	"kubeadm-without-a-mode":           "the chart takes the containers' ports from the addresses",
}

// testSchemaAgreesWithTheProgram takes every v1alpha1 document of the corpus as the value config.
func testSchemaAgreesWithTheProgram(t *testing.T) {
	cases := corpus.All(t)
	if len(cases) < 40 {
		t.Fatalf("the corpus has %d cases, want at least 40", len(cases))
	}
	counts := map[bool]int{}
	for _, c := range cases {
		data := []byte(c.File(corpus.Input))
		var document values
		if yaml.UnmarshalStrict(data, &document) != nil || document["apiVersion"] != "kubeproxy.config.k8s.io/v1alpha1" || document["kind"] != "KubeProxyConfiguration" {
			continue
		}
		delete(document, "hostnameOverride") // the chart's
		t.Run(c.Name, func(t *testing.T) {
			runs := programRuns(data)
			_, err := renderChart(needed(values{"config": document}))
			if agree := runs == (err == nil); agree == (differences[c.Name] != "") {
				t.Errorf("the program runs it: %v; the chart says %v; a difference is expected: %v", runs, err, differences[c.Name])
			}
			counts[runs]++
		})
	}
	if counts[true] < 10 || counts[false] < 10 {
		t.Errorf("%d documents that run, %d that do not, want 10 at least of each", counts[true], counts[false])
	}
}

// programRuns reports whether the program runs a document, as it is meant, without a warning about a
// field that it does not know.
func programRuns(document []byte) bool {
	file, err := config.Parse(document)
	if err != nil {
		return false
	}
	if slices.ContainsFunc(file.Warnings, func(w string) bool { return strings.Contains(w, "unknown field") }) {
		return false
	}
	return fmt.Sprint(file.Config.Mode) == string(v1alpha2.ModeNFTables)
}
