package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// made runs `make build` with a version, and returns the directory of the programs.
func made(t *testing.T, variables ...string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("make", append([]string{"-C", "..", "build", "BIN=" + dir}, variables...)...)
	build.Env = append(os.Environ(), "MAKEFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	return dir
}

func printed(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return string(out)
}

// mixinsVersion is what the alert KubeVersionMismatch of kubernetes-mixin makes of the label git_version
// before it counts how many different ones there are.
var mixinsVersion = regexp.MustCompile(`^(v[0-9]*.[0-9]*).*$`)

func TestVersions(t *testing.T) {
	netns.Need(t)
	t.Run("of the libraries, unless told otherwise", func(t *testing.T) {
		f := newWithServer(t)
		dir := made(t, "VERSION=v9.8.7-test")
		module := strings.TrimSpace(printed(t, "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kube-proxy"))
		kube := "v1." + strings.TrimPrefix(module, "v0.")

		if got, want := printed(t, filepath.Join(dir, "kube-proxy"), "--version"), fmt.Sprintf("Kubernetes %s+nftproxy-v9.8.7-test\n", kube); got != want {
			t.Errorf("kube-proxy --version prints %q, want %q", got, want)
		}
		if got, want := printed(t, filepath.Join(dir, "ruledump"), "--version"), fmt.Sprintf("ruledump version v9.8.7-test, for kube-proxy %s\n", kube); got != want {
			t.Errorf("ruledump --version prints %q, want %q", got, want)
		}

		p := lab.StartCommand(t, f.lab.Node, exec.Command(filepath.Join(dir, "kube-proxy"), append(f.args(), "--kubeconfig="+f.kubeconfig)...))
		f.applied(t)
		page, err := getFrom(f.lab.Node, "http://127.0.0.1:10249/metrics")
		if err != nil {
			t.Fatal(err)
		}
		version := regexp.MustCompile(`(?m)^kubernetes_build_info\{.*git_version="([^"]*)".*major="1",minor="(\d+)".*\} 1$`).FindStringSubmatch(page)
		if version == nil || version[1] != kube+"+nftproxy-v9.8.7-test" {
			t.Fatalf("kubernetes_build_info has the version %q, want %s and ours", version, kube)
		}
		if got, want := mixinsVersion.ReplaceAllString(version[1], "$1"), "v1."+version[2]; got != want {
			t.Errorf("KubeVersionMismatch sees the version %s, want %s", got, want)
		}
		if own := fmt.Sprintf(`kube_proxy_version="%s",version="v9.8.7-test"} 1`, kube); !strings.Contains(page, own) {
			t.Errorf("nftproxy_build_info does not have %s", own)
		}
		if err := p.Stop(t); err != nil {
			t.Error(err)
		}
		first, _, _ := strings.Cut(p.Output(), "\n")
		if want := fmt.Sprintf(`"Version info" nftproxy="v9.8.7-test" kubeProxy="%s"`, kube); !strings.Contains(first, want) {
			t.Errorf("the log begins with %s, want %s", first, want)
		}
	})
	t.Run("of the cluster", func(t *testing.T) {
		t.Parallel()
		dir := made(t, "VERSION=abc1234-dirty", "KUBE_VERSION=v1.36.2")
		if got, want := printed(t, filepath.Join(dir, "kube-proxy"), "--version"), "Kubernetes v1.36.2+nftproxy-abc1234-dirty\n"; got != want {
			t.Errorf("kube-proxy --version prints %q, want %q", got, want)
		}
	})
}
