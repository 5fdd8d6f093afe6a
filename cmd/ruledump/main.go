// Command ruledump shows the nftables rules that the proxy wrote, or would write: as rules, as Services, as the way of a
// packet. It never changes anything and runs no other program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses besides 0, as diff(1) has them.
const (
	// exitDifferent is for a difference that the diff command found.
	exitDifferent = 1
	// exitFailed is for everything that could not be done, and for a command line that makes no sense.
	exitFailed = 2
)

// errDifferent ends the diff command with exitDifferent. It is not printed.
var errDifferent = errors.New("there is a difference")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := newCommand(os.Args[0])
	root.SetContext(ctx)
	os.Exit(execute(root))
}

// execute runs the command and returns the exit status.
func execute(root *cobra.Command) int {
	running := false
	for _, cmd := range append(root.Commands(), root) {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				running = true
				return run(cmd, args)
			}
		}
	}
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errDifferent):
		return exitDifferent
	}
	fmt.Fprintln(root.ErrOrStderr(), "ruledump:", strings.TrimSpace(err.Error()))
	if !running {
		fmt.Fprintf(root.ErrOrStderr(), "%q says more\n", cmd.CommandPath()+" --help")
	}
	return exitFailed
}
