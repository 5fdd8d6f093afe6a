package takeover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab"
)

// iptablesCommands are the programs of one family of addresses.
type iptablesCommands struct{ save, restore string }

// variants are the two kernel interfaces that the iptables programs write to, by the suffix of the programs.
var variants = []string{"nft", "legacy"}

// commandsOf returns the programs that write to one of the kernel's interfaces, by what they are recorded as.
func commandsOf(variant string) map[string]iptablesCommands {
	return map[string]iptablesCommands{
		"ip":  {"iptables-" + variant + "-save", "iptables-" + variant + "-restore"},
		"ip6": {"ip6tables-" + variant + "-save", "ip6tables-" + variant + "-restore"},
	}
}

func recordedIPTables(family string) string { return fmt.Sprintf("testdata/iptables-%s.rules", family) }

// runIn runs a program in the host, and returns what it prints.
func runIn(t *testing.T, h *lab.Host, stdin string, program string, args ...string) string {
	t.Helper()
	var out, stderr strings.Builder
	if err := h.Do(func() error {
		cmd := exec.Command(program, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
		return cmd.Run()
	}); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, stderr.String())
	}
	return out.String()
}

// iptablesPath makes a directory in which the iptables programs are those of a variant.
func iptablesPath(t *testing.T, variant string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-" + variant + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(dir, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// savedIPTables returns what iptables-save prints, without what differs from run to run. A counter of
// nfacct, which kube-proxy makes by other means, is left out too: rules that name it load only where it is.
func savedIPTables(t *testing.T, h *lab.Host, variant, family string) string {
	t.Helper()
	text := runIn(t, h, "", commandsOf(variant)[family].save)
	text = regexp.MustCompile(`(?m)^#.*\n| -m nfacct --nfacct-name +\S+`).ReplaceAllString(text, "")
	return regexp.MustCompile(`(?m) \[\d+:\d+\]$`).ReplaceAllString(text, " [0:0]")
}

// recordIPTables runs the kube-proxy of the flag in its mode iptables.
func recordIPTables(t *testing.T) {
	t.Helper()
	l, dir := newLab(t), iptablesPath(t, "nft")
	p := startKubeProxyInMode(t, l.Node, "iptables", dir)
	for family := range commandsOf("nft") {
		eventually(t, "kube-proxy has synced "+family, func() error {
			if !strings.Contains(savedIPTables(t, l.Node, "nft", family), "KUBE-SEP-") {
				return errors.New("there is no endpoint")
			}
			return nil
		})
	}
	p.stop(t)
	version, err := exec.Command(*kubeProxy, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	for family, commands := range commandsOf("nft") {
		keep(t, recordedIPTables(family), fmt.Sprintf("%s after kube-proxy (%s, mode iptables) was given manifests.yaml.", commands.save, strings.TrimSpace(string(version))),
			savedIPTables(t, l.Node, "nft", family))
	}
}

func TestRec(t *testing.T) { recordIPTables(t) }
