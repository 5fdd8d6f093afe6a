package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// commandFlags returns all flags of the command, by name.
func commandFlags() map[string]*pflag.Flag {
	cmd := newCommand()
	cmd.InitDefaultHelpFlag()
	flags := map[string]*pflag.Flag{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = f })
	return flags
}

// kubeProxyFlags returns the flags of kube-proxy and the types of their values.
func kubeProxyFlags(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	flags := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, kind, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			flags[name] = kind
		}
	}
	if len(flags) < 50 {
		t.Fatalf("found %d flags of kube-proxy", len(flags))
	}
	return flags
}

// ours are the flags that kube-proxy v1.37 does not have. Those of v1.36 are the last two.
var ours = []string{
	"manifests", "leftovers", "leftovers-drain-timeout", "service-proxy-name", "write-config-version", "serve-node-local", "node-local-source",
	"node-local-cert-file", "node-local-key-file", "node-local-ca-file",
	"node-local-max-ports", "node-local-max-addresses", "node-local-max-bytes", "authorize-node-names",
	"boot-id-file", "machine-id-file",
}

func testFlagsOfKubeProxyAreThere(t *testing.T) {
	// A type that checks what Validate checks here.
	asString := map[string]bool{"ip": true, "ipport": true, "LocalMode": true, "ProxyMode": true}
	flags := commandFlags()
	for name, kind := range kubeProxyFlags(t) {
		f := flags[name]
		if f == nil {
			t.Errorf("--%s is missing", name)
			continue
		}
		delete(flags, name)
		got, _ := pflag.UnquoteUsage(f)
		if got == "" {
			got = "bool"
		}
		if got != kind && !(got == "string" && asString[kind]) {
			t.Errorf("--%s takes a %s, kube-proxy's a %s", name, got, kind)
		}
	}
	for name := range flags {
		if !slices.Contains(ours, name) {
			t.Errorf("--%s is not a flag of kube-proxy", name)
		}
	}
}

func testFlagTableHasEveryFlag(t *testing.T) {
	var names []string
	for _, f := range defaultOptions().flagTable() {
		names = append(names, f.name)
	}
	var want []string
	for name := range commandFlags() {
		want = append(want, name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-flags +table):\n%s", diff)
	}
}

func testFlagTableFieldsExist(t *testing.T) {
	o := defaultOptions()
	o.config.NodeLocal = &v1alpha2.NodeLocalConfiguration{
		Serve: "a", Source: "b", CertFile: "c", KeyFile: "d", CAFile: "e", AuthorizeNodeNames: new(true), Limits: v1alpha2.NodeLocalLimits{Ports: 1, Addresses: 2, Bytes: 3},
	}
	// What --write-config-to leaves out when it is empty.
	omitted := []string{"featureGates", "logging.vmodule", "logging.options.json.splitStream", "logging.options.text.splitStream"}
	data, err := json.Marshal(o.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range defaultOptions().flagTable() {
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Split(f.field, ".") {
			object, _ := tree.(map[string]any)
			var ok bool
			if tree, ok = object[name]; !ok && f.field != "" && !slices.Contains(omitted, f.field) {
				t.Errorf("--%s: there is no field %s", f.name, f.field)
				break
			}
		}
	}
}
