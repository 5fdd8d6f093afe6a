package nodelocal

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clientModules has the modules that a client of the node-local API depends on. docs/node-local.md lists them too.
var clientModules = []string{
	"github.com/cenkalti/backoff/v5",
	"github.com/go-logr/logr",
	"golang.org/x/net",
	"golang.org/x/sys",
	"golang.org/x/text",
	"google.golang.org/genproto/googleapis/rpc",
	"google.golang.org/grpc",
	"google.golang.org/protobuf",
}

func TestImports(t *testing.T) {
	t.Run("clients import nothing of Kubernetes", testClientsImportNothingOfKubernetes)
}

func testClientsImportNothingOfKubernetes(t *testing.T) {
	const own = "github.com/nftproxy/nftproxy"
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	modules = slices.DeleteFunc(slices.Compact(modules), func(m string) bool { return m == own })
	if diff := cmp.Diff(clientModules, modules); diff != "" {
		t.Errorf("modules that a client depends on (-want +got):\n%s", diff)
	}
}
