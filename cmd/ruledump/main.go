// Command ruledump shows the nftables rules that the proxy wrote, or would write: as rules, as Services, as the way of
// a packet. It changes no rule of the proxy and runs no other program.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := verb.New()
	root.SetContext(ctx)
	os.Exit(verb.Execute(root))
}
