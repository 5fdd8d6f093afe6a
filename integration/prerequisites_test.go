package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// machine is a directory of programs, the only one in PATH.
type machine struct{ programs, log string }

// newMachine returns a machine with what make needs, on which id names this user.
func newMachine(t *testing.T, uid string) machine {
	t.Helper()
	m := machine{programs: t.TempDir(), log: filepath.Join(t.TempDir(), "log")}
	for _, name := range []string{"make", "git", "sed", "chmod"} {
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
	if err := os.WriteFile(filepath.Join(m.programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// addApt adds an apt-get that logs its arguments. What it installs are the programs that `make test` needs.
func (m machine) addApt(t *testing.T) {
	t.Helper()
	m.add(t, "apt-get", `echo "$*" >>`+m.log+`
if [ "$1" = install ]; then
	cd `+m.programs+`
	for name in nft iptables-nft-restore iptables-legacy-restore gcc python3; do echo >$name; chmod +x $name; done
fi`)
}

// make runs a target, and returns what it prints and whether it succeeds.
func (m machine) make(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-s", "-C", "..", "KUBE_VERSION=v1.37.0"}, args...)...)
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
	const programs, packages = "nft iptables-nft-restore iptables-legacy-restore gcc python3", "nftables iptables gcc libc6-dev python3"

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
		if out, ok := m.make(t, "prerequisites", "NO_INSTALL=1"); !ok || out != "" {
			t.Errorf("with everything installed: success: %t, output %q, want none", ok, out)
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

// The go command itself says whether the libraries are in its cache; here it is one that only answers.
func TestFirstBuild(t *testing.T) {
	for stale, want := range map[string]string{"true": "The first build compiles", "false": "build of"} {
		t.Run("nothing compiled: "+stale, func(t *testing.T) {
			m := newMachine(t, "0")
			m.add(t, "go", `case $1 in list) echo `+stale+`;; *) echo build of the programs;; esac`)
			if out, ok := m.make(t, "build"); !ok || !strings.HasPrefix(out, want) || !strings.Contains(out, "build of the programs") {
				t.Errorf("success: %t, output %q, want one that begins with %q, and the build", ok, out, want)
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
