package verb

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
)

// ruledump runs a command line and returns its exit status and what it printed.
func execute(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	cmd := New()
	cmd.SetArgs(append([]string{}, args...)) // nil is those of the test
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	status = Execute(cmd)
	return status, out.String(), errs.String()
}

func TestExitStatus(t *testing.T) {
	const manifests = "--manifests=../../../docs/example/manifests"
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		// stdout begins with one, stderr has the other.
		stdout, stderr string
	}{
		{"no command", nil, 0, "ruledump shows the nftables rules", ""},
		{"help", []string{"--help"}, 0, "ruledump shows the nftables rules", ""},
		{"unknown command", []string{"dump"}, 2, "", `ruledump: unknown command "dump"; there are `},
		{"unknown flag", []string{"live", "--colour"}, 2, "", "ruledump: unknown flag: --colour"},
		{"similar command", []string{"servces"}, 2, "", `ruledump: unknown command "servces"; did you mean services?`},
		{"beginnings of commands", []string{"s"}, 2, "", `did you mean schema or services or stats?`},
		{"similar flag", []string{"services", "--namspace=shop"}, 2, "", "ruledump: unknown flag: --namspace; did you mean --namespace?"},
		{"similar flag with one dash", []string{"live", "-dump", "x"}, 2, "", "did you mean --dump?"},
		{"argument too many", []string{"live", "now"}, 2, "", `"ruledump live --help" says more`},
		{"no target", []string{"services", "--node-local=there", "--node=node-1"}, 2, "", `ruledump: --node-local: not a target: "there"`},
		{"no certificate", []string{"services", "--node-local=tcp://127.0.0.1:1", "--node=node-1"}, 2, "", "tcp://127.0.0.1:1 needs TLS with a client certificate: set --node-local-cert-file"},
		{"no argument", []string{"graph", manifests, "--node=node-1"}, 2, "", "ruledump: want one argument, a Service, such as shop/web, and got 0"},
		{"flag missing", []string{"compile", manifests}, 2, "", "--node is missing: rules are compiled for one Node"},
		{"flag without its other half", []string{"explain", "--from=10.0.0.1", "--to=10.0.0.2:80", manifests}, 2, "", "--node is missing: rules are compiled for one Node"},
		{"trace without a terminal", []string{"trace", "--to=shop/web"}, 2, "", "ruledump: trace adds a table to the kernel while it runs: give --yes if you want that"},
		{"watch --refused without a terminal", []string{"watch", "--refused"}, 2, "", "ruledump: watch --refused adds a table to the kernel while it runs: give --yes if you want that"},
		{"a Service to watch for changes", []string{"watch", "shop/web"}, 2, "", "ruledump: shop/web names a Service, which needs --refused"},
		{"a flag of watch --refused alone", []string{"watch", "-n", "shop"}, 2, "", "ruledump: --namespace needs --refused"},
		{"a limit of nothing", []string{"watch", "--refused", "--yes", "--limit=0"}, 2, "", "ruledump: --limit 0 is not between 1 and 2147483647"},
		{"no such directory", []string{"compile", "--manifests=/nonexistent", "--node=node-1"}, 2, "", "ruledump: open /nonexistent: no such file or directory"},
		{"a Node that is there", []string{"compile", manifests, "--node=node-1"}, 0, "table ip kube-proxy {", ""},
		{"a Node that is not there", []string{"compile", manifests, "--node=node-9"}, 0, "table ip kube-proxy {",
			"ruledump: the manifests have no Node node-9; these are the rules of a node without addresses and zone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := execute(tt.args...)
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			if !strings.HasPrefix(stdout, tt.stdout) || tt.stdout == "" && stdout != "" {
				t.Errorf("stdout %.200q, want %q", stdout, tt.stdout)
			}
			if !strings.Contains(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
				t.Errorf("stderr %q, want %q", stderr, tt.stderr)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	status, stdout, _ := execute("--version")
	if !regexp.MustCompile(`^ruledump version \S+, for kube-proxy \S+\n$`).MatchString(stdout) || status != 0 {
		t.Errorf("status %d, stdout %q", status, stdout)
	}
}

func TestCompile(t *testing.T) {
	ranges := flows.FindCase(t, "source-ranges-of-one-family-leave-the-other-open").ManifestsDir(t)
	guarded := flows.FindCase(t, "source-ranges-drop-all-others").ManifestsDir(t)
	oneFamily := flows.FindCase(t, "node-port-addresses-of-one-family-leave-the-other-open")
	gateOff := flows.FindCase(t, "external-ips-are-left-out-with-the-feature-gate-off")
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{
			name: "warns of families that source ranges leave open",
			args: []string{"--manifests", ranges},
			want: []string{
				"ruledump: Service shop/web: everybody may dial its IPv6 load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0",
				"ruledump: Service shop/everyone: everybody may dial its IPv4 IPv6 load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0",
			},
		},
		{
			name: "warns of nothing where ranges guard both",
			args: []string{"--manifests", guarded},
		},
		{
			name: "warns of a family that nodePortAddresses does not name",
			args: []string{"--manifests", ranges, "--config", oneFamily.ConfigFile(t)},
			want: []string{"nodePortAddresses: has no IPv6 address, so IPv6 node ports answer on every address of the node but loopback"},
		},
		{
			name: "warns of nothing where a gate is honoured",
			args: []string{"--manifests", gateOff.ManifestsDir(t), "--config", gateOff.ConfigFile(t)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := run(append([]string{"compile", "--node", "node-1"}, tc.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
			if len(tc.want) == 0 && strings.Contains(out, "ruledump: ") {
				t.Errorf("warns:\n%s", out)
			}
		})
	}
}

// Every command has examples, and a man page with the text of its help.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if status, _, stderr := execute("man", dir); status != 0 {
		t.Fatal(stderr)
	}
	for _, c := range commands() {
		if c.Hidden {
			continue
		}
		t.Run(c.Name(), func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(dir, "ruledump-"+c.Name()+".8"))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(c.Long) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 96 {
					t.Errorf("a line of the help has %d columns: %s", n, line)
				}
			}
			if !strings.Contains(string(page), ".SH EXAMPLE") || c.Example == "" {
				t.Error("no examples")
			}
			for line := range strings.Lines(c.Example) {
				if !strings.HasPrefix(line, "  ") && strings.TrimSpace(line) != "" {
					t.Errorf("example %q is not indented", line)
				}
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			if status, stdout, stderr := execute("completion", shell); status != 0 || !strings.Contains(stdout, "ruledump") {
				t.Errorf("status %d: %s", status, stderr)
			}
		})
	}
	t.Run("of the names of Services", func(t *testing.T) {
		_, stdout, stderr := execute("__complete", "services", "--manifests=../../../docs/example/manifests", "--node=node-1", "")
		if want := "shop/api\nshop/empty\nshop/web\n:4\n"; stdout != want {
			t.Errorf("%q, want %q\n%s", stdout, want, stderr)
		}
	})
}
