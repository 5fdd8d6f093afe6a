package verb

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// Whatever a verb writes as JSON it writes as YAML.
func TestFormat(t *testing.T) {
	from := []string{"services", "--manifests", "../../../docs/example/manifests", "--config", "../../../docs/example/config.yaml", "--node", "node-1", "-o"}
	_, asJSON, _ := execute(append(from, "json")...)
	_, asYAML, stderr := execute(append(from, "yaml")...)
	var want, got any
	for text, into := range map[string]*any{asJSON: &want, asYAML: &got} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err, stderr)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || want == nil || strings.HasPrefix(asYAML, "{") {
		t.Errorf("services (-json +yaml):\n%s\n%.200s", diff, asYAML)
	}
	from[0] = "compile"
	if _, asYAML, _ = execute(append(from, "yaml")...); !strings.Contains(asYAML, "\norigin: manifests\n") {
		t.Errorf("compile: %.200s", asYAML)
	}
	f := newFormat("text", "json")
	var b strings.Builder
	for _, kind := range []string{"Change", "Trace"} {
		if err := f.Set("yaml"); err != nil {
			t.Fatal(err)
		}
		if err := f.stream(&b, &Rates{nodeDocument: nodeDocument{document: documentOf(kind)}}); err != nil {
			t.Fatal(err)
		}
	}
	if documents := strings.SplitAfter(b.String(), "---\n"); len(documents) != 3 || !strings.Contains(documents[2], "kind: Trace\n") {
		t.Errorf("a stream of two: %q", documents)
	}
}

func TestPage(t *testing.T) {
	for _, tt := range []struct {
		name, text, want string
		colours          bool
	}{
		{"has lines and columns", "a\tb\nö →\n", "a\tb\nö →\n", false},
		{"does not set a terminal's title", "chain \x1b]0;evil\x07", `chain \x1b]0;evil\a`, true},
		{"does not clear a terminal", "\x1b[2J \u009b2J \r", `\x1b[2J \u009b2J \r`, true},
		{"takes no colour from a name", "\x1b[31mbad\x1b[0m", `\x1b[31mbad\x1b[0m`, true},
		{"takes no colour from a name, without colours", "\x1b[31mbad", `\x1b[31mbad`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPage(tt.colours)
			p.WriteString(tt.text)
			if got := p.String(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	t.Run("marks in colour", func(t *testing.T) {
		p := newPage(true)
		p.printf("a %s c %s", p.bad("b"), p.bold("d\x1b[8m"))
		if got, want := p.String(), "a \x1b[31mb\x1b[0m c \x1b[1md\\x1b[8m\x1b[0m"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// On a terminal headings are bold, and what is dropped, refused or serves nobody is red.
func TestColours(t *testing.T) {
	t.Setenv("TERM", "xterm")
	from := []string{"--manifests", "../../../docs/example/manifests", "--config", "../../../docs/example/config.yaml", "--node", "node-1"}
	refused := []string{"explain", "--from", "10.244.1.250", "--to", "10.96.0.30:80"}
	for _, tt := range []struct {
		name, noColour string
		args           []string
		want           []string
	}{
		{"services", "", []string{"services"}, []string{"\x1b[1mSERVICE PORT", "\x1b[31mshop/empty     10.96.0.30:80/TCP"}},
		{"without headings", "", []string{"services", "--no-headers", "-o=wide"}, []string{"shop/api"}},
		{"explain", "", refused, []string{"\x1b[31mrefused: the sender gets an ICMP port unreachable\x1b[0m"}},
		{"NO_COLOR", "1", refused, []string{"\r\nrefused: the sender"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tt.noColour)
			said := onTerminal(t, append(tt.args, from...))
			for _, want := range tt.want {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in %q", want, said)
				}
			}
			if tt.noColour != "" && strings.Contains(said, "\x1b") || tt.name == "without headings" && strings.Contains(said, "SERVICE") {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// onTerminal returns what a command prints on a pseudoterminal.
func onTerminal(t *testing.T, args []string) string {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string)
	go func() {
		text, _ := io.ReadAll(ours) // the end is EIO, when theirs is closed
		said <- string(text)
	}()
	cmd := New()
	cmd.SetArgs(args)
	cmd.SetOut(theirs)
	status := Execute(cmd)
	theirs.Close()
	if status != 0 {
		t.Errorf("status %d", status)
	}
	return <-said
}
