package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The tests run on older kernels with these modules and no others, so the page that names them for nodes that load none
// on demand must name the same.
func TestProxyModules(t *testing.T) {
	page, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("load them at boot: `([^`]*)`").FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/deploy.md does not say which modules to load at boot")
	}
	if diff := cmp.Diff(proxyModules, strings.Fields(string(found[1]))); diff != "" {
		t.Errorf("modules (-needed +in docs/deploy.md):\n%s", diff)
	}
}
