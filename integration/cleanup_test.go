package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

func TestCleanupCommand(t *testing.T) {
	t.Run("beside a running proxy", testCleanupBesideARunningProxy)
}

// cleanup runs the command, with no other argument, and returns its output.
func (f *withServer) cleanup(t *testing.T) (output string, err error) {
	t.Helper()
	p := lab.Start(t, f.lab.Node, "kube-proxy", "--cleanup")
	err = p.Wait()
	return p.Output(), err
}

func (f *withServer) tables(t *testing.T) string {
	t.Helper()
	return lab.Nft(t, f.lab.Node, "", "list", "tables")
}

// The tables are back within a second, so "Removed" alone would be wrong.
func testCleanupBesideARunningProxy(t *testing.T) {
	f := newWithServer(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	p.Says(t, firstSyncLine)
	output, err := f.cleanup(t)
	if want := fmt.Sprintf("a proxy runs on this node: kube-proxy (pid %d) has added again ip kube-proxy", p.Cmd.Process.Pid); err == nil || !strings.Contains(output, want) {
		t.Errorf("the command ended with %v, want an error that says %q:\n%s", err, want, output)
	}
	if tables := f.tables(t); !strings.Contains(tables, "ip kube-proxy") {
		t.Errorf("the tables are %q, so this test shows nothing", tables)
	}
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	output, err = f.cleanup(t)
	if err != nil || !strings.Contains(output, `"Removed" table="ip kube-proxy"`) {
		t.Errorf("without a proxy, the command ended with %v:\n%s", err, output)
	}
	if strings.Contains(output, "warning") {
		t.Errorf("the command warns of what concerns a running proxy only:\n%s", output)
	}
	if tables := f.tables(t); strings.Contains(tables, "kube-proxy") {
		t.Errorf("the tables are %q", tables)
	}
}
