package integration

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/blang/semver/v4"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// TestModules compares what is linked into the programs with least-versions.txt. It needs no network, which
// make vulnerabilities does, and finds a version that falls back, not a vulnerability that was published since.
func TestModules(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("least-versions.txt")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]string{}
	for _, program := range []string{"kube-proxy", "ruledump"} {
		info, err := buildinfo.ReadFile(lab.Binary(t, program))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range info.Deps {
			linked[m.Path] = m.Version
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			t.Fatalf("least-versions.txt: %q has %d fields, want module, version and vulnerability", line, len(fields))
		}
		module, least, vulnerability := fields[0], fields[1], fields[2]
		switch version, there := linked[module]; {
		case !there:
			t.Errorf("least-versions.txt: no program links %s", module)
		case versionOf(t, version).LT(versionOf(t, least)):
			t.Errorf("%s %s is linked, and %s is fixed in %s", module, version, vulnerability, least)
		}
	}
}

func versionOf(t *testing.T, text string) semver.Version {
	t.Helper()
	v, err := semver.Parse(strings.TrimPrefix(text, "v"))
	if err != nil {
		t.Fatalf("version %q: %v", text, err)
	}
	return v
}

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

// mixinsVersion matches the part of the label git_version that the alert KubeVersionMismatch of kubernetes-mixin
// keeps before it counts the different ones.
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

// machine is a directory of programs, the only one in PATH.
type machine struct{ programs, log string }

// newMachine returns a machine with what make needs, on which id names this user.
func newMachine(t *testing.T, uid string) machine {
	t.Helper()
	m := machine{programs: t.TempDir(), log: filepath.Join(t.TempDir(), "log")}
	for _, name := range []string{"make", "git", "sed", "chmod", "rm"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(m.programs, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.add(t, "id", "echo "+uid)
	m.add(t, "go", "")
	return m
}

func (m machine) add(t *testing.T, name, script string) {
	t.Helper()
	// A process that another test starts would have the file open for writing until it is executed, and then nobody could
	// execute this one.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(m.programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// policy says that no daemon may be started. It is there for as long as something is installed.
func (m machine) policy() string { return filepath.Join(m.programs, "policy-rc.d") }

// addApt adds an apt-get that logs its arguments. What it installs are the programs that `make test` needs.
func (m machine) addApt(t *testing.T) {
	t.Helper()
	m.add(t, "apt-get", `echo "$*" >>`+m.log+`
if [ "$1" = install ]; then
	[ -x `+m.policy()+` ] || exit 1
	cd `+m.programs+`
	for name in nft iptables-nft-restore iptables-legacy-restore gcc python3 ip portmap bird; do echo >$name; chmod +x $name; done
fi`)
}

// make runs a target, and returns what it prints and whether it succeeds.
func (m machine) make(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-s", "-C", "..", "KUBE_VERSION=v1.37.0", "CNI_PLUGINS=/nonexistent", "POLICY=" + m.policy()}, args...)...)
	cmd.Env = []string{"PATH=" + m.programs, "MAKEFLAGS="}
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func (m machine) installed(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(m.log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

func TestPrerequisites(t *testing.T) {
	const programs, packages = "nft iptables-nft-restore iptables-legacy-restore gcc python3 ip portmap bird", "nftables iptables gcc libc6-dev python3 iproute2 containernetworking-plugins bird2"

	t.Run("are installed", func(t *testing.T) {
		m := newMachine(t, "0")
		m.addApt(t)
		out, ok := m.make(t, "prerequisites")
		if want := "make test lacks " + programs + ": apt-get installs " + packages + " (NO_INSTALL=1 refuses)\n"; !ok || out != want {
			t.Errorf("success: %t, output %q, want %q", ok, out, want)
		}
		if got, want := m.installed(t), "update -qq\ninstall -y -qq "+packages+"\n"; got != want {
			t.Errorf("apt-get was called with %q, want %q", got, want)
		}
		if _, err := os.Stat(m.policy()); !os.IsNotExist(err) {
			t.Errorf("the policy that no daemon is started is left: %v", err)
		}
		if out, ok := m.make(t, "prerequisites", "NO_INSTALL=1"); !ok || out != "" {
			t.Errorf("with everything installed: success: %t, output %q, want none", ok, out)
		}
	})

	t.Run("are qemu's too where 32-bit programs do not run", func(t *testing.T) {
		m := newMachine(t, "0")
		m.add(t, "go", `[ "$1" != run ]`)
		out, ok := m.make(t, "prerequisites", "NO_INSTALL=1")
		if want := "make test lacks " + programs + " qemu-arm-static (apt-get install " + packages + " qemu-user-static)"; ok || !strings.HasPrefix(out, want) {
			t.Errorf("success: %t, output %q, want a failure that begins with %q", ok, out, want)
		}
	})

	for _, tt := range []struct {
		name, uid string
		apt       bool
		args      []string
		want      string
	}{
		{"are only named with NO_INSTALL", "0", true, []string{"NO_INSTALL=1"}, "make test lacks " + programs + " (apt-get install " + packages + ")"},
		{"are only named without apt-get", "0", false, nil, "make test lacks " + programs + " (apt-get install " + packages + ")"},
		{"are only named without root", "1000", true, nil, "make test lacks root (sudo make test) and " + programs + " (apt-get install " + packages + ")"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, tt.uid)
			if tt.apt {
				m.addApt(t)
			}
			out, ok := m.make(t, append([]string{"prerequisites"}, tt.args...)...)
			if ok || !strings.HasPrefix(out, tt.want) {
				t.Errorf("success: %t, output %q, want a failure that begins with %q", ok, out, tt.want)
			}
			if got := m.installed(t); got != "" {
				t.Errorf("apt-get was called with %q", got)
			}
		})
	}
}

// The other programs of TestMachine's machine succeed whatever they are asked.
func TestMachine(t *testing.T) {
	netns.Need(t)
	if out, err := exec.Command("../hack/machine.sh", "100").CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("this machine: %v, output %q", err, out)
	}
	for _, tt := range []struct{ name, program, script, want string }{
		{"too few open files", "sh", `[ "$2" != "ulimit -n 16000" ] || { echo refused; exit 1; }`, "make test needs 16000 open files: refused\n"},
		{"a shallow clone", "git", "echo no such revision; exit 1", "make test needs git's history, from which it builds the version before (git fetch --unshallow): no such revision\n"},
		{"a kernel without iptables-legacy", "unshare", `case $2 in *legacy) echo $2 fails; exit 1;; esac`,
			"make test needs what iptables-legacy needs in the kernel: iptables-legacy fails\nmake test needs what ip6tables-legacy needs in the kernel: ip6tables-legacy fails\n"},
		{"a container without privileges", "unshare", "echo not permitted; exit 1", "make test needs to make network namespaces: not permitted\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, "0")
			for _, program := range []string{"nft", "iptables-nft-restore", "iptables-legacy-restore", "gcc", "python3", "ip", "portmap", "bird", "sh", "git", "unshare"} {
				if os.Remove(filepath.Join(m.programs, program)); program != tt.program {
					m.add(t, program, "")
				}
			}
			m.add(t, tt.program, tt.script)
			if out, ok := m.make(t, "machine"); ok || !strings.HasPrefix(out, tt.want) {
				t.Errorf("success: %t, output %q, want a failure with %q", ok, out, tt.want)
			}
		})
	}
}

// The go command is one that only says how it was called, and `go run` fails where 32-bit programs do not run.
func TestThirtyTwoBit(t *testing.T) {
	const missing = "make test-32 lacks qemu-arm-static (apt-get install qemu-user-static): this machine runs no 386 programs\n"
	for _, tt := range []struct {
		name string
		runs bool
		qemu bool
		want string
	}{
		{"programs of 386, which run as they are", true, false, "tests of 386 with none"},
		{"programs of arm in qemu, where these do not run", false, true, "tests of arm with qemu-arm-static"},
		{"what is missing, without either", false, false, missing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, "0")
			m.add(t, "nproc", "echo 2")
			m.add(t, "go", fmt.Sprintf(`case $1 in
run) %t;;
test) with=none; for word in "$@"; do [ "$before" != -exec ] || with=$word; before=$word; done; echo tests of $GOARCH with $with;;
esac`, tt.runs))
			if tt.qemu {
				m.add(t, "qemu-arm-static", "")
			}
			out, ok := m.make(t, "test-32")
			if ok != (tt.runs || tt.qemu) || !strings.Contains(out, tt.want) {
				t.Errorf("success: %t, output %q, want %q", ok, out, tt.want)
			}
		})
	}
}

// The go command itself says whether the libraries are in its cache; here it is one that only answers.
func TestFirstBuild(t *testing.T) {
	t.Parallel()
	for stale, want := range map[string]string{"true": "The first build compiles", "false": "build of"} {
		t.Run("nothing compiled: "+stale, func(t *testing.T) {
			m := newMachine(t, "0")
			m.add(t, "go", `case $1 in list) echo `+stale+`;; *) echo build of the programs $*;; esac`)
			out, ok := m.make(t, "build")
			if !ok || !strings.HasPrefix(out, want) || !strings.Contains(out, "build of the programs") {
				t.Errorf("success: %t, output %q, want one that begins with %q, and the build", ok, out, want)
			}
			if shown := strings.Contains(out, " -v "); shown != (stale == "true") {
				t.Errorf("names the packages that it compiles: %t, in %q", shown, out)
			}
		})
	}
	t.Run("an empty cache", func(t *testing.T) {
		cmd := exec.Command("make", "-s", "-C", "..", "announce")
		cmd.Env = append(os.Environ(), "MAKEFLAGS=", "GOCACHE="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "The first build compiles") {
			t.Errorf("make announce: %v, output %q", err, out)
		}
	})
}

// make plot cannot run here: it takes a quiet machine. A wrong name of its program is found all the same.
func TestMakefile(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	runs := regexp.MustCompile(`(?m)^\t(cd tools && )?\$\(GO\) run (\./\S+)(.*)$`).FindAllStringSubmatch(string(makefile), -1)
	if len(runs) < 5 {
		t.Fatalf("%d commands run a program of this repository; this test looks for something else", len(runs))
	}
	for _, run := range runs {
		dir := filepath.Join("..", run[2])
		if run[1] != "" {
			dir = filepath.Join("../tools", run[2])
		}
		if text, err := os.ReadFile(filepath.Join(dir, "main.go")); err != nil || !bytes.Contains(text, []byte("\npackage main\n")) {
			t.Errorf("%q runs no program (%v)", run[0], err)
		}
		if strings.HasPrefix(strings.TrimSpace(run[3]), "./") {
			t.Errorf("%q passes a package as an argument", run[0])
		}
	}
}
