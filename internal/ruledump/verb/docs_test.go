package verb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/marked"
	"github.com/spf13/pflag"
)

// The options in docs/ruledump.md are those that --help prints.
func TestOptionsInDocs(t *testing.T) {
	marked.Check(t, "../../../docs/ruledump.md", "options", optionsTable(), *update)
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
