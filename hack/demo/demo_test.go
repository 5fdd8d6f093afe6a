package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// nobody is a user without privileges.
const nobody = 65534

func TestMain(m *testing.M) { lab.Main(m) }

// buildPrograms builds the demo and what it shows into a directory that everybody can enter.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", dir, "./cmd/kube-proxy", "./cmd/ruledump", "./hack/demo")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, output)
	}
	return dir
}

func requireRoot(t *testing.T) {
	t.Helper()
	netns.Need(t)
	if os.Geteuid() != 0 {
		t.Fatal("this test builds network namespaces, run it as root")
	}
}

// demoIn prepares a run of the demo that keeps its temporary files in a directory of its own.
func demoIn(t *testing.T, dir string) (demo *lab.Process, tmp string) {
	t.Helper()
	tmp = filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "demo"))
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+tmp)
	return lab.NewProcess(t, cmd), tmp
}

func checkNothingLeft(t *testing.T, tmp string) {
	t.Helper()
	entries, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("the demo left %s", e.Name())
	}
}

// checkDemo runs the demo to its end and looks for the lines that matter.
func checkDemo(t *testing.T, demo *lab.Process) {
	t.Helper()
	begin := time.Now()
	if err := runToEnd(demo); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > await.Patience {
		t.Errorf("it took %s", took)
	}
	for _, want := range []string{
		"First connection to 10.96.0.10:80 answered",
		"(kept)",
		"(masqueraded)",
		"connection refused",
		"first connection answered by web-5",
		"stayed alive",
		"goto cluster-4",
		"numgen random mod 4 map @endpoints",
		"kill -9 of the server; web-2 replaces web-5",
		"kill -9 of the backend; web-5 replaces web-2",
		"backend started again",
		"40 of 40 new connections",
		"tables ip kube-proxy and ip6 kube-proxy are gone",
	} {
		if !strings.Contains(demo.Output(), want) {
			t.Errorf("no line with %q", want)
		}
	}
}

func runToEnd(demo *lab.Process) error {
	if err := demo.Cmd.Start(); err != nil {
		return err
	}
	return demo.Wait()
}

func TestDemo(t *testing.T) {
	t.Run("runs as root", testDemoAsRoot)
	t.Run("runs without privileges", testDemoWithoutPrivileges)
	t.Run("cleans up after an interrupt", testDemoCleansUpAfterAnInterrupt)
	t.Run("stays until it is interrupted", testDemoStays)
	t.Run("explains a missing program", testDemoExplainsAMissingProgram)
}

func testDemoAsRoot(t *testing.T) {
	requireRoot(t)
	demo, tmp := demoIn(t, buildPrograms(t))
	checkDemo(t, demo)
	checkNothingLeft(t, tmp)
}

func testDemoWithoutPrivileges(t *testing.T) {
	requireRoot(t)
	asNobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	skipWithoutUserNamespaces(t, asNobody)
	demo, tmp := demoIn(t, buildPrograms(t))
	demo.Cmd.SysProcAttr = asNobody
	checkDemo(t, demo)
	checkNothingLeft(t, tmp)
}

// skipWithoutUserNamespaces skips a test where the system forbids what it needs.
func skipWithoutUserNamespaces(t *testing.T, asNobody *syscall.SysProcAttr) {
	t.Helper()
	probe := exec.Command("true")
	probe.Dir, probe.SysProcAttr = "/", asNobody
	if err := probe.Run(); err != nil {
		t.Skipf("cannot become user %d here: %v", nobody, err)
	}
	for file, forbids := range map[string]string{
		"/proc/sys/kernel/unprivileged_userns_clone":             "0",
		"/proc/sys/user/max_user_namespaces":                     "0",
		"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
	} {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == forbids {
			t.Skipf("%s is %s: users may not make user namespaces", file, forbids)
		}
	}
}

func testDemoCleansUpAfterAnInterrupt(t *testing.T) {
	requireRoot(t)
	demo, tmp := demoIn(t, buildPrograms(t))
	if err := demo.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	demo.Says(t, "First connection to")
	if err := demo.Cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := demo.Wait(); err == nil || !strings.Contains(demo.Output(), "interrupted") {
		t.Errorf("error %v", err)
	}
	checkNothingLeft(t, tmp)
	program := filepath.Join(filepath.Dir(demo.Cmd.Path), "kube-proxy")
	if found := processesOf(t, program); len(found) > 0 {
		t.Errorf("still running: %v", found)
	}
}

// processesOf returns the processes that run the program.
func processesOf(t *testing.T, program string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == program {
			found = append(found, link)
		}
	}
	return found
}

func testDemoExplainsAMissingProgram(t *testing.T) {
	netns.Need(t)
	dir := buildPrograms(t)
	if err := os.Remove(filepath.Join(dir, "kube-proxy")); err != nil {
		t.Fatal(err)
	}
	demo, _ := demoIn(t, dir)
	if err := runToEnd(demo); err == nil {
		t.Error("no error")
	}
	if got, want := demo.Output(), "demo: kube-proxy not found: run `make demo`\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// testDemoStays keeps the demo, looks from another process at what it left running, and ends it.
func testDemoStays(t *testing.T) {
	requireRoot(t)
	demo, tmp := demoIn(t, buildPrograms(t))
	demo.Cmd.Args = append(demo.Cmd.Args, "-keep")
	if err := demo.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	demo.Says(t, "kube-proxy.log")
	for verb, want := range map[string]string{"services": "192.0.2.10:80/TCP", "check": "proxy: applied"} {
		line := regexp.MustCompile(`nsenter .* ` + verb).FindString(demo.Output())
		if output, _ := exec.Command("sh", "-c", line).CombinedOutput(); !strings.Contains(string(output), want) { // shop/empty is broken
			t.Errorf("%s printed %s, want %q", line, output, want)
		}
	}
	if err := demo.Cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := demo.Wait(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, tmp)
	if found := processesOf(t, filepath.Join(filepath.Dir(demo.Cmd.Path), "kube-proxy")); len(found) > 0 {
		t.Errorf("still running: %v", found)
	}
}
