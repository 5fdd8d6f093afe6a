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

// Exit statuses besides 0.
const (
	exitFailed = 1
	// exitUsage is for a command line that makes no sense.
	exitUsage = 2
)

// status is an error that asks for an exit status of its own. Without an error in it, nothing is printed.
type status struct {
	code int
	err  error
}

func (s *status) Error() string {
	if s.err == nil {
		return ""
	}
	return s.err.Error()
}

func (s *status) Unwrap() error { return s.err }

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
	if err == nil {
		return 0
	}
	if text := strings.TrimSpace(err.Error()); text != "" {
		fmt.Fprintln(root.ErrOrStderr(), "ruledump:", text)
	}
	var own *status
	switch {
	case errors.As(err, &own):
		return own.code
	case running:
		return exitFailed
	}
	fmt.Fprintf(root.ErrOrStderr(), "%q says more\n", cmd.CommandPath()+" --help")
	return exitUsage
}
