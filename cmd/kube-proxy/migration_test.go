package main

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// fieldsOf returns the paths of all fields below a type that are not objects themselves.
func fieldsOf(typ reflect.Type, prefix string) (paths []string) {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ.NumField() == 0 || !typ.Field(0).IsExported() || typ.Name() == "Duration" {
		return []string{prefix}
	}
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "" || name == "-":
			paths = append(paths, fieldsOf(field.Type, prefix)...)
		case prefix == "":
			paths = append(paths, fieldsOf(field.Type, name)...)
		default:
			paths = append(paths, fieldsOf(field.Type, prefix+"."+name)...)
		}
	}
	return paths
}

// covers reports whether a cell of the table is about a field.
func covers(cell, path string) bool {
	group, all := strings.CutSuffix(cell, "*")
	return cell == path || all && strings.HasPrefix(path, group)
}

func TestMigrationPage(t *testing.T) {
	t.Run("fields have a row", testFieldsHaveARow)
	t.Run("rows say what becomes of a field", testRowsSayWhatBecomesOfAField)
	t.Run("the table of metrics is current", testMetricTableIsCurrent)
	t.Run("fields of objects are audited", testObjectFieldsAreAudited)
}

func testFieldsHaveARow(t *testing.T) {
	rows := tableBelow(t, "Configuration fields")
	for column, version := range []struct {
		name   string
		fields []string
	}{
		{"v1alpha1", fieldsOf(reflect.TypeFor[kubeproxyv1alpha1.KubeProxyConfiguration](), "")},
		{"v1alpha2", fieldsOf(reflect.TypeFor[v1alpha2.KubeProxyConfiguration](), "")},
	} {
		if len(version.fields) < 50 {
			t.Fatalf("%s has only the fields %q; this test reads it wrong", version.name, version.fields)
		}
		for _, field := range version.fields {
			if !slices.ContainsFunc(rows, func(row []string) bool { return covers(row[column], field) }) {
				t.Errorf("%s has no row for %s of %s", docs, field, version.name)
			}
		}
		for _, row := range rows {
			if row[column] != "" && !slices.ContainsFunc(version.fields, func(field string) bool { return covers(row[column], field) }) {
				t.Errorf("%s has a row for %s, which %s does not have", docs, row[column], version.name)
			}
		}
	}
}

// verdict matches the texts that the column "here" may have.
var verdict = regexp.MustCompile(`^(same([:.,] .+)?|different: .+|not applicable: .+|only here)$`)

func testRowsSayWhatBecomesOfAField(t *testing.T) {
	for heading, column := range map[string]int{"Flags": 3, "Configuration fields": 2, "Endpoints": 4, "Metrics": 1} {
		for _, row := range tableBelow(t, heading) {
			if !verdict.MatchString(row[column]) {
				t.Errorf("%s: %q says %q", heading, row[0], row[column])
			}
		}
	}
	for _, row := range tableBelow(t, "Configuration fields") {
		if (row[0] == "") != (row[2] == "only here") {
			t.Errorf("field %q of v1alpha2 says %q, and v1alpha1 has %q", row[1], row[2], row[0])
		}
	}
}

// metricDifferences says what metrics mean otherwise than kube-proxy's of the same name.
var metricDifferences = map[string]string{
	"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total":             "always 0, because there is no cleanup apart from the sync",
	"kubeproxy_nftables_localhost_nodeport_listeners":                        "needs no feature gate",
	"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": "needs no feature gate",
}

// metricList reads what the package metrics keeps of metrics: their signatures by name.
func metricList(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../internal/metrics/testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, signature := range regexp.MustCompile(`(?m)^kubeproxy_.*(\n  buckets .*)?`).FindAllString(string(text), -1) {
		name, _, _ := strings.Cut(signature, "{")
		list[name] = signature
	}
	if len(list) < 15 {
		t.Fatalf("%s has only %d metrics; this test reads it wrong", file, len(list))
	}
	return list
}

func testMetricTableIsCurrent(t *testing.T) {
	theirs, ours := metricList(t, "kube-proxy-v1.37.txt"), metricList(t, "metrics.txt")
	all := maps.Clone(theirs)
	maps.Copy(all, ours)
	var b strings.Builder
	b.WriteString("| metric | here |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, metricVerdict(name, theirs[name], ours[name]))
	}
	checkDocs(t, "metrics", b.String())
}

func metricVerdict(name, theirs, ours string) string {
	switch difference := metricDifferences[name]; {
	case theirs == "":
		return "only here"
	case theirs != ours:
		return "different: in labels, type, buckets or stability level"
	case difference != "":
		return "different: " + difference
	}
	return "same"
}
