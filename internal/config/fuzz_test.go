package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/corpus"
	"sigs.k8s.io/yaml"
)

// FuzzParse: whatever the document, there is a configuration or a one-line error. A
// configuration reads the same after it was written, converts, and compiles in mode nftables.
func FuzzParse(f *testing.F) {
	for _, c := range cases(f) {
		f.Add(c.File(corpus.Input))
	}
	f.Fuzz(func(t *testing.T, input string) {
		file, err := Parse([]byte(input))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		for _, warning := range file.Warnings {
			if strings.Contains(warning, "\n") {
				t.Errorf("a warning of several lines: %q", warning)
			}
		}
		written, err := yaml.Marshal(file.Config)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(written)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v\n%s", err, written)
		}
		if diff := cmp.Diff(string(written), document(t, again.Config)); diff != "" {
			t.Errorf("(-written +read):\n%s", diff)
		}
		back, _ := v1alpha2.ToV1alpha1(file.Config)
		v1alpha2.FromV1alpha1(back)
		if _, err := Compiler(file.Config); err != nil && file.Config.Mode == v1alpha2.ModeNFTables {
			t.Errorf("a valid configuration does not compile: %v", err)
		}
	})
}
