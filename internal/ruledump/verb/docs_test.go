package verb

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// The options in docs/ruledump.md are those that --help prints.
func TestOptionsInDocs(t *testing.T) {
	const page, begin, end = "../../../docs/ruledump.md", "<!-- options -->\n", "<!-- end of options -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %q and %q", page, begin, end)
	}
	want := optionsTable()
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(table, want); diff != "" {
		t.Errorf("%s (-page +--help); `make golden` accepts the change:\n%s", page, diff)
	}
}

// optionsTable has a row for each option, or for each meaning of one.
func optionsTable() string {
	type option struct{ name, text string }
	commandsOf := map[option][]string{}
	var options []option
	for _, c := range commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			o := option{"`" + strings.TrimSpace("--"+f.Name+" "+strings.ToUpper(value)) + "`", usage}
			if f.Shorthand != "" {
				o.name = "`-" + f.Shorthand + "`, " + o.name
			}
			if !slices.Contains([]string{"", "[]", "false", "0", "0s"}, f.DefValue) {
				o.text += fmt.Sprintf(" (default `%s`)", f.DefValue)
			}
			if commandsOf[o] == nil {
				options = append(options, o)
			}
			commandsOf[o] = append(commandsOf[o], c.Name())
		})
	}
	name := func(o option) string { return o.name[strings.Index(o.name, "--"):] }
	slices.SortStableFunc(options, func(a, b option) int { return cmp.Compare(name(a), name(b)) })
	var b strings.Builder
	b.WriteString("| option | commands | |\n|---|---|---|\n")
	for _, o := range options {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", o.name, strings.Join(commandsOf[o], ", "), strings.ReplaceAll(o.text, "|", `\|`))
	}
	return b.String()
}
