// Command ruledump prints the nftables ruleset that the proxy would program, or the one that
// the kernel holds. It never changes anything and runs no other program.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses besides 0.
const (
	exitFailed = 1
	// exitUsage is for a command line that makes no sense.
	exitUsage = 2
)

func main() { os.Exit(execute(newCommand())) }

// execute runs the command and returns the exit status.
func execute(root *cobra.Command) int {
	running := false
	for _, cmd := range append(root.Commands(), root) {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			running = true
			return run(cmd, args)
		}
	}
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	fmt.Fprintln(root.ErrOrStderr(), "ruledump:", strings.TrimSpace(err.Error()))
	if running {
		return exitFailed
	}
	fmt.Fprintf(root.ErrOrStderr(), "%q says more\n", cmd.CommandPath()+" --help")
	return exitUsage
}
