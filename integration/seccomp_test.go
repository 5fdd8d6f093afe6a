package integration

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/private"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
)

// seccompProfile is the one that docs/deploy.md tells operators to put on nodes.
const seccompProfile = "../deploy/seccomp/nftproxy.json"

var withoutCall = flag.String("without-call", "", "take this system call out of the seccomp profile: TestSeccompProfile must then fail")

// allowedCalls returns the names in the seccomp profile.
func allowedCalls(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(seccompProfile)
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		DefaultAction string
		Syscalls      []struct {
			Names  []string
			Action string
		}
	}
	if err := json.Unmarshal(text, &profile); err != nil {
		t.Fatal(err)
	}
	if profile.DefaultAction != "SCMP_ACT_ERRNO" {
		t.Errorf("the default action is %s", profile.DefaultAction)
	}
	for _, group := range profile.Syscalls {
		if group.Action != "SCMP_ACT_ALLOW" || !slices.IsSorted(group.Names) {
			t.Errorf("the group %q is %s, or not sorted", group.Names, group.Action)
		}
		names = append(names, group.Names...)
	}
	return names
}

// callNumbers returns the numbers of system calls on this machine by their names, from the source of x/sys/unix.
func callNumbers(t *testing.T) map[string]int {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+runtime.GOARCH+".go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			name := strings.ToLower(strings.TrimPrefix(spec.Names[0].Name, "SYS_"))
			numbers[name], err = strconv.Atoi(spec.Values[0].(*ast.BasicLit).Value)
		}
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return numbers
}

// restricted is a node whose programs may make certain system calls only.
type restricted struct {
	*withServer
	environment string
}

func newRestricted(t *testing.T, without string) *restricted {
	t.Helper()
	numbers, allowed := callNumbers(t), []int{}
	for _, name := range allowedCalls(t) {
		number, known := numbers[name]
		if !known && runtime.GOARCH == "amd64" {
			t.Errorf("there is no system call %s", name)
		}
		if known && name != without {
			allowed = append(allowed, number)
		}
	}
	return &restricted{newWithServer(t), process.Only(allowed)}
}

// run starts a program of this module. If it makes another system call, the test fails.
func (f *restricted) run(t *testing.T, program string, args ...string) *lab.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{lab.Binary(t, program)}, args...)...)
	cmd.Env = append(os.Environ(), f.environment)
	p := lab.StartCommand(t, f.lab.Node, cmd)
	t.Cleanup(func() {
		if log := p.Output(); strings.Contains(log, badCall) {
			t.Errorf("%s %q makes a system call that %s lacks:\n%s", program, args, seccompProfile, log)
		}
	})
	return p
}

// badCall is the message of a Go program that dies of a forbidden system call.
const badCall = "SIGSYS: bad system call"

func (f *restricted) proxy(t *testing.T, args ...string) *lab.Process {
	t.Helper()
	return f.run(t, "kube-proxy", append(f.args(), args...)...)
}

func TestSeccompProfile(t *testing.T) {
	t.Run("is enough", testSeccompProfileIsEnough)
	t.Run("shows a call that it lacks", testSeccompProfileShowsACallThatItLacks)
}

func testSeccompProfileShowsACallThatItLacks(t *testing.T) {
	f := newRestricted(t, "accept4")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{lab.Binary(t, "kube-proxy"), "--kubeconfig=" + f.kubeconfig}, f.args()...)...)
	cmd.Env = append(os.Environ(), f.environment)
	p := lab.StartCommand(t, f.lab.Node, cmd)
	if err := p.Wait(); err == nil || !strings.Contains(p.Output(), badCall) || !strings.Contains(p.Output(), "accept") {
		t.Errorf("it ends with %v and\n%s", err, p.Output())
	}
}

// Everything that a pod of the proxy does, and the programs that somebody runs in it.
func testSeccompProfileIsEnough(t *testing.T) {
	f := newRestricted(t, *withoutCall)
	servePod(t, f.lab, "first", "10.244.1.5")
	servePod(t, f.lab, "second", "10.244.1.6")
	service, slice := busyService("10.244.1.5")
	lab.Create(t, f.server, service, slice)
	f.followsTheAPIServer(t)
	f.followsANodeLocalServer(t)
	f.readsFiles(t)
}

// move has busyService lead to another pod.
func (f *restricted) move(t *testing.T, to string) {
	t.Helper()
	_, slice := busyService(to)
	lab.Update(t, f.server, slice)
}

// ends waits for programs that are to end with code 0.
func ends(t *testing.T, programs ...*lab.Process) {
	t.Helper()
	for _, p := range programs {
		if err := p.Wait(); err != nil {
			t.Errorf("%v ends with %v", p.Cmd.Args[1:], err)
		}
	}
}

// stops ends a program.
func stops(t *testing.T, p *lab.Process) {
	t.Helper()
	if err := p.Stop(t); err != nil {
		t.Errorf("%v ends with %v", p.Cmd.Args[1:], err)
	}
}

func (f *restricted) followsTheAPIServer(t *testing.T) {
	t.Helper()
	socket := "--serve-node-local=unix://" + filepath.Join(private.Dir(t), "proxy")
	p := f.proxy(t, "--kubeconfig="+f.kubeconfig, "--profiling", "--nodeport-addresses=127.0.0.0/8,192.168.0.0/24", socket)
	f.reaches(t, "first")
	f.becomes(t, "200 200")
	for port, path := range map[int]string{10249: "/debug/pprof/profile?seconds=1", busyHealthPort: "/"} {
		await.Until(t, path, func() error {
			code, body, err := ask(f.lab.Node, port, path)
			if err == nil && code != 200 {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	conn, _, err := dialAt(f.lab.Node, fmt.Sprint("127.0.0.1:", busyNodePort))
	if err != nil {
		t.Fatalf("a node port on loopback: %v", err)
	}
	expectAlive(t, conn, "first")
	conn.Close()
	ends(t, f.run(t, "ruledump"))
	lab.Nft(t, f.lab.Node, "", "flush", "ruleset")
	f.reaches(t, "first")
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := p.Cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	f.move(t, "10.244.1.6")
	f.reaches(t, "second")
	stops(t, p)
}

func (f *restricted) followsANodeLocalServer(t *testing.T) {
	t.Helper()
	socket := "unix://" + filepath.Join(private.Dir(t), "server")
	server := f.run(t, "kube-proxy", "node-local-server", "--kubeconfig="+f.kubeconfig, "--listen="+socket)
	p := f.proxy(t, "--node-local-source="+socket)
	f.move(t, "10.244.1.5")
	f.reaches(t, "first")
	watch := f.run(t, "kube-proxy", "node-local-watch", "--node-local-source", socket, "--hostname-override", lab.NodeName)
	watch.Says(t, `{"full":true`)
	stops(t, watch)
	stops(t, p)
	stops(t, server)
}

// readsFiles has the proxy follow a link that leads elsewhere later, as the kubelet's do.
func (f *restricted) readsFiles(t *testing.T) {
	t.Helper()
	good, bad, link := f.g.ManifestsDir(t), t.TempDir(), filepath.Join(t.TempDir(), "manifests")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	p := f.proxy(t, "--manifests="+link)
	p.Says(t, firstSyncLine)
	if err := errors.Join(
		os.WriteFile(filepath.Join(bad, "broken.yaml"), []byte("kind: ["), 0o600),
		os.Symlink(bad, link+".new"), os.Rename(link+".new", link),
	); err != nil {
		t.Fatal(err)
	}
	p.Says(t, "broken.yaml")
	stops(t, p)

	config := filepath.Join(t.TempDir(), "config.yaml")
	ends(t, f.proxy(t, "--write-config-to="+config))
	p = f.run(t, "kube-proxy", "--config="+config, "--manifests="+good)
	p.Says(t, firstSyncLine)
	stops(t, p)
	ends(t, f.run(t, "kube-proxy", "--cleanup"))
	f.nothingApplied(t)
}
