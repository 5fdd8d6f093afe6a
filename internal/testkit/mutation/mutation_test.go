package mutation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Most mutations are built only by make mutations. A change of the compiler must not make one of them impossible.
func TestPlaces(t *testing.T) {
	for _, m := range All {
		source, err := os.ReadFile(filepath.Join("../../..", m.File))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), m.Old) {
			t.Errorf("%s: %s has no %q", m.Name, m.File, m.Old)
		}
		if found, err := Find(m.Name); found != m || err != nil {
			t.Errorf("%s: found %v, %v", m.Name, found, err)
		}
	}
	if _, err := Find("no such mutation"); err == nil {
		t.Error("a mutation that does not exist was found")
	}
}
