package config

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
)

func TestFeatureGates(t *testing.T) {
	t.Run("external IPs go by theirs", testExternalIPsGoByTheirGate)
	t.Run("clients go by theirs", testClientsGoByTheGates)
	t.Run("those that have no effect here", testGatesWithoutEffect)
	t.Run("are documented", testGatesAreDocumented)
}

func testExternalIPsGoByTheirGate(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		ignored    bool
	}{
		{"by default they count", "", false},
		{"on", "featureGates: {AllowServiceExternalIPs: true}", false},
		{"off", "featureGates: {AllowServiceExternalIPs: false}", true},
		{"no group of gates has it", "featureGates: {AllAlpha: false, AllBeta: false}", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, header := range []string{header1, header2} {
				f := parse(t, header+tt.yaml)
				if got := Tracker(f.Config).IgnoreExternalIPs; got != tt.ignored {
					t.Errorf("ignored: %v, want %v", got, tt.ignored)
				}
				if text := strings.Join(f.Warnings, "; "); strings.Contains(text, "AllowServiceExternalIPs") {
					t.Errorf("a gate that has an effect is warned about: %s", text)
				}
			}
		})
	}
}

// client-go asks the gates of the configuration, as in kube-proxy, and its environment variables no more.
func testClientsGoByTheGates(t *testing.T) {
	t.Setenv("KUBE_FEATURE_"+string(clientfeatures.ClientsAllowCBOR), "true")
	for _, set := range []map[string]bool{{"WatchListClient": false}, {"WatchListClient": true}, nil} {
		gates, ineffective, errs := FeatureGates(set)
		if len(errs) > 0 || len(ineffective) > 0 {
			t.Fatalf("%v: %v, ineffective %v", set, errs, ineffective)
		}
		UseInClients(gates)
		want, isSet := set["WatchListClient"]
		if got := clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient); got != want && isSet || !got && !isSet {
			t.Errorf("%v: WatchListClient is %v", set, got)
		}
		if clientfeatures.FeatureGates().Enabled(clientfeatures.ClientsAllowCBOR) {
			t.Errorf("%v: an environment variable counts", set)
		}
	}
}

func testGatesWithoutEffect(t *testing.T) {
	for _, tt := range []struct {
		name        string
		set         map[string]bool
		ineffective []string
		wantErr     string
	}{
		{name: "of another component", set: map[string]bool{"NodeSwap": true}, ineffective: []string{"NodeSwap has no effect in this proxy"}},
		{name: "that kube-proxy heeds and this proxy does not", set: map[string]bool{"NFTablesNetlink": false},
			ineffective: []string{"NFTablesNetlink has no effect in this proxy: rules always go to the kernel over netlink, no nft program is run"}},
		{name: "locked, in kube-proxy too", set: map[string]bool{"InOrderInformers": false}, wantErr: "locked to true"},
		{name: "unknown", set: map[string]bool{"Turbo": true}, wantErr: "must be the name of a feature gate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, ineffective, errs := FeatureGates(tt.set)
			if diff := cmp.Diff(tt.ineffective, ineffective); diff != "" {
				t.Errorf("ineffective (-want +got):\n%s", diff)
			}
			if err := errs.ToAggregate(); (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// testGatesAreDocumented compares the tables of the page with the gates: each that
// has an effect with its default, and each that has one in kube-proxy alone with what is said of it.
func testGatesAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Feature gates\n")
	if !found {
		t.Fatal("the page has no section on feature gates")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]+) \\|").FindAllStringSubmatch(section, -1) {
		documented[row[1]] = row[2]
	}
	want := maps.Clone(fixedGates)
	gates, _, _ := FeatureGates(nil)
	for name, spec := range gates.GetAll() {
		want[string(name)] = defaultOf(spec)
	}
	if diff := cmp.Diff(want, documented); diff != "" {
		t.Errorf("gates and docs/configuration.md (-program +page):\n%s", diff)
	}
	known := strings.Fields(kubeProxyGates)
	delete(want, string(AffinityHash))
	delete(want, string(DirectReturn))
	delete(want, string(OwnTables))
	delete(want, string(RefusedCounters))
	delete(want, string(ServiceCounters))
	for name := range want {
		if !slices.Contains(known, name) {
			t.Errorf("kube-proxy has no gate %s", name)
		}
	}
}

func defaultOf(spec featuregate.FeatureSpec) string {
	text := "off"
	if spec.Default {
		text = "on"
	}
	if spec.LockToDefault {
		text += ", locked"
	}
	return text
}
