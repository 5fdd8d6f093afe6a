package main

import (
	"os"
	"path/filepath"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

func TestBillOf(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		programs []string
		name     string
		kind     cyclonedx.ComponentType
	}{
		{[]string{"kube-proxy", "ruledump"}, "nftproxy", cyclonedx.ComponentTypeContainer},
		{[]string{"proxytest"}, "proxytest", cyclonedx.ComponentTypeApplication},
		{[]string{"kubectl-nftproxy.exe"}, "kubectl-nftproxy", cyclonedx.ComponentTypeApplication},
	} {
		var programs []string
		for _, name := range tt.programs {
			programs = append(programs, program(name))
		}
		bom, err := billOf("v1.2.3", programs)
		if err != nil {
			t.Fatal(err)
		}
		if c := bom.Metadata.Component; c.Name != tt.name || c.Type != tt.kind {
			t.Errorf("of %v it is that of the %s %s, want the %s %s", tt.programs, c.Type, c.Name, tt.kind, tt.name)
		}
	}
}
