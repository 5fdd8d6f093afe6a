package takeover

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// Without the flag, tests go by what a kube-proxy did when it was recorded.
var kubeProxy = flag.String("kube-proxy", "", "Kubernetes' kube-proxy, to record anew what it does, and to go back to it instead of playing that")

const recordedRuleset = "testdata/ruleset.nft"

func recordedFirstSync(f nft.Family) string { return fmt.Sprintf("testdata/first-sync-%s.nft", f) }

// loadRecorded makes the kernel hold what the recorded kube-proxy made it hold.
func loadRecorded(t *testing.T, h *lab.Host) {
	t.Helper()
	lab.Nft(t, h, "", "-f", recordedRuleset)
}

// playFirstSync sends what kube-proxy begins with: a transaction for each family.
func playFirstSync(t *testing.T, h *lab.Host, c *nft.Conn) {
	t.Helper()
	for _, f := range nft.Families {
		have, err := c.ReadTable(t.Context(), f, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		script, err := os.ReadFile(recordedFirstSync(f))
		if err != nil {
			t.Fatal(err)
		}
		lab.Nft(t, h, firstSync(string(script), have), "-f", "-")
	}
}

// startKubeProxy starts the kube-proxy of the flag with the manifests, and waits until it has synced them.
func startKubeProxy(t *testing.T, h *lab.Host, dir string) *lab.Process {
	t.Helper()
	p := startKubeProxyInMode(t, h, "nftables", dir)
	await.Until(t, "kube-proxy has synced both families", func() error {
		for _, f := range nft.Families {
			if !strings.Contains(lab.Nft(t, h, "", "list", "ruleset", f.String()), "chain service-") {
				return fmt.Errorf("no Service in table %s", f)
			}
		}
		return nil
	})
	return p
}

// startKubeProxyInMode starts it with an API server in the same host. The programs that it runs are those in
// dir, as far as they are there.
func startKubeProxyInMode(t *testing.T, h *lab.Host, mode, dir string) *lab.Process {
	t.Helper()
	server, kubeconfig := lab.APIServer(t, h)
	lab.Upload(t, server, manifestsFile)
	args := append(slices.Clone(flags), "--kubeconfig", kubeconfig, "--proxy-mode="+mode)
	return startKubernetes(t, h, dir, args...)
}

// startKubernetes starts Kubernetes' kube-proxy. The programs that it runs are those in dir, as far as they are there.
func startKubernetes(t *testing.T, h *lab.Host, dir string, args ...string) *lab.Process {
	t.Helper()
	cmd := exec.Command(*kubeProxy, args...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	return lab.StartCommand(t, h, cmd)
}

// record runs the kube-proxy of the flag where there are no tables, with an nft that keeps what it is sent.
func record(t *testing.T) {
	t.Helper()
	l, dir := lab.ForTest(t), t.TempDir()
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	wrapper := fmt.Sprintf("#!/bin/sh\ncase $1 in -f) tee %s/script.$$ | exec %s \"$@\";; *) exec %[2]s \"$@\";; esac\n", dir, program)
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(wrapper), 0o700); err != nil {
		t.Fatal(err)
	}
	startKubeProxy(t, l.Node, dir).Stop(t)
	version, err := exec.Command(*kubeProxy, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	by := strings.TrimSpace(string(version))
	keep(t, recordedRuleset, fmt.Sprintf("`nft list ruleset` after kube-proxy (%s, nftables mode) was given manifests.yaml.", by), lab.Nft(t, l.Node, "", "list", "ruleset"))
	scripts, err := filepath.Glob(filepath.Join(dir, "script.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range scripts {
		script, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range nft.Families {
			if strings.HasPrefix(string(script), "add table "+f.String()+" ") {
				keep(t, recordedFirstSync(f), fmt.Sprintf("What kube-proxy (%s, nftables mode) sends to nft first, given manifests.yaml, where there is no table.", by), string(script))
			}
		}
	}
}

func keep(t *testing.T, path, what, text string) {
	t.Helper()
	header := "# " + what + "\n# Made by `go test ./integration/takeover -run " + t.Name() + " -args -kube-proxy PATH`.\n"
	if err := os.WriteFile(path, []byte(header+text), 0o644); err != nil {
		t.Fatal(err)
	}
}
