package main

import (
	"errors"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/nodelocal"
)

const splitDocs = "../../docs/node-local.md"

// splitRows returns the rows of the table about the settings of a proxy behind a node-local server: the second cell by
// the first.
func splitRows(t *testing.T, heading string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(splitDocs)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "\n| "+heading+" |")
	if !found {
		t.Fatalf("%s has no table of %s", splitDocs, heading)
	}
	text, _, _ = strings.Cut(text, "\n\n")
	rows := map[string]string{}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for _, name := range namesIn(cells[0]) {
			rows[name] = strings.TrimSpace(cells[1])
		}
	}
	return rows
}

// Every setting either works with --node-local-source, or the proxy refuses to start and names the flag of
// node-local-server. The table says which, and a field or gate that it lacks fails the test.
func TestSettingsWithANodeLocalSource(t *testing.T) {
	t.Run("every field works or is refused, as documented", testFieldsWorkOrAreRefused)
	t.Run("every feature gate works or is refused, as documented", testGatesWorkOrAreRefused)
	t.Run("errors name the file", testRefusedFieldOfAFile)
}

func testFieldsWorkOrAreRefused(t *testing.T) {
	rows := splitRows(t, "field")
	seen := map[string]bool{}
	for _, field := range fieldsOf(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "") {
		var row string
		for name := range rows {
			if covers(name, field) && len(name) > len(row) {
				row = name
			}
		}
		if row == "" {
			t.Errorf("%s has no row for %s", splitDocs, field)
			continue
		}
		seen[row] = true
		if field == "nodeLocal.source" || field == "featureGates" || field == "kind" || field == "apiVersion" {
			continue
		}
		c := behindServer(t)
		if !change(reflect.ValueOf(c).Elem(), strings.Split(field, ".")) {
			t.Fatalf("this test cannot change %s", field)
		}
		checkRefused(t, c, field, rows[row])
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("%s has a row for %s, which is no field", splitDocs, name)
		}
	}
}

func testGatesWorkOrAreRefused(t *testing.T) {
	rows := splitRows(t, "feature gate")
	gates, _, _ := config.FeatureGates(nil)
	all := slices.Collect(maps.Keys(gates.GetAll()))
	for _, gate := range all {
		if _, ok := rows[string(gate)]; !ok {
			t.Errorf("%s has no row for the gate %s", splitDocs, gate)
		}
	}
	for name, row := range rows {
		gate := featuregate.Feature(name)
		if !slices.Contains(all, gate) {
			t.Errorf("%s has a row for %s, which is no gate", splitDocs, name)
			continue
		}
		c := behindServer(t)
		c.FeatureGates = map[string]bool{name: gates.Enabled(gate)}
		checkRefused(t, c, name, "works")
		if !gates.GetAll()[gate].LockToDefault {
			c.FeatureGates[name] = !gates.Enabled(gate)
			checkRefused(t, c, name, row)
		}
	}
}

// behindServer returns the default configuration of a proxy with a node-local source.
func behindServer(t *testing.T) *v1alpha2.KubeProxyConfiguration {
	t.Helper()
	c := mustParse(t, "--node-local-source=unix:///run/server", "--cluster-cidr=10.0.0.0/8").config
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	return c
}

// checkRefused compares the answer to a configuration with the row of the table.
func checkRefused(t *testing.T, c *v1alpha2.KubeProxyConfiguration, name, row string) {
	t.Helper()
	err := errors.Join(config.ValidateNodeLocal(c, nil), config.CheckSource(c, nil))
	flags := namesIn(row)
	switch {
	case strings.HasPrefix(row, "works"), strings.HasPrefix(row, "no effect"):
		if err != nil {
			t.Errorf("%s: the table says %q, the proxy says %v", name, row, err)
		}
	case !strings.HasPrefix(row, "refused") || len(flags) == 0:
		t.Errorf("%s: the row says %q, which is neither works, no effect nor refused with a flag", name, row)
	case err == nil:
		t.Errorf("%s: the table says %q, and the proxy starts", name, row)
	case !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), flags[0]):
		t.Errorf("%s: error %q, want one that names it and %s", name, err, flags[0])
	case newServerCommand().Flags().Lookup(strings.TrimPrefix(flags[0], "--")) == nil:
		t.Errorf("%s: node-local-server has no flag %s", name, flags[0])
	}
}

// change sets the field at path to a value that it does not have.
func change(v reflect.Value, path []string) bool {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	switch value := v.Addr().Interface().(type) {
	case *metav1.Duration:
		value.Duration++
		return len(path) == 0
	case *resource.Quantity:
		value.Add(resource.MustParse("1"))
		return len(path) == 0
	}
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name == "" && change(v.Field(i), path) || name != "" && len(path) > 0 && name == path[0] && change(v.Field(i), path[1:]) {
				return true
			}
		}
		return false
	}
	if len(path) > 0 {
		return false
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float32:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	default:
		return false
	}
	return true
}

func testRefusedFieldOfAFile(t *testing.T) {
	refused := func(args ...string) error {
		o, err := parsed(t, append(args, "--node-local-source=unix:///run/server")...)
		if err != nil {
			return err
		}
		return o.checkRunnable()
	}
	path := configFile(t, "v1alpha1", "clusterCIDR: 10.0.0.0/8\nclientConnection: {kubeconfig: /k, qps: 50}\n")
	err := refused("--config=" + path)
	for _, want := range []string{path, "clientConnection.kubeconfig", "clientConnection.qps", "node-local-server --kube-api-qps"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if err := refused("--kube-api-burst=20"); err == nil || !strings.HasPrefix(err.Error(), "--kube-api-burst: ") {
		t.Errorf("error %v does not name the flag of the proxy", err)
	}
}

// On the network both sides need the files for TLS, and the error names their flags.
func TestNodeLocalAddressWithoutTLS(t *testing.T) {
	const address = "tcp://127.0.0.1:1"
	o := nodeLocalOptions{NodeLocalConfiguration: v1alpha2.NodeLocalConfiguration{Source: address, Serve: address}}
	_, client := o.newClient(t.Context(), nodelocal.Options{Node: "node-1"})
	for side, err := range map[string]error{"client": client, "server": o.serve(t.Context(), new(errgroup.Group), nil)} {
		if err == nil || !strings.Contains(err.Error(), address+" needs TLS with client certificates: set --node-local-cert-file") {
			t.Errorf("%s: %v", side, err)
		}
	}
}
