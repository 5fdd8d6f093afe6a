// Command demo shows the proxy at work in a small cluster of network namespaces, which it
// makes and removes itself: run it with `make demo`.
//
// It needs no cluster and leaves nothing behind. Without privileges it runs itself again as
// root of a user namespace of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := start(ctx); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted, everything is removed")
		}
		// A second self has said what went wrong already.
		if !errors.Is(err, errSecondSelf) {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		os.Exit(1)
	}
}

// start runs the demo here if this process may, else in a user namespace.
func start(ctx context.Context) error {
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	l, err := lab.New()
	if errors.Is(err, netns.ErrPrivilege) {
		if isSecondSelf() {
			return errors.New("user namespaces grant no privileges on this system: run as root")
		}
		return runSecondSelf(ctx)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	return run(ctx, l, programs)
}
