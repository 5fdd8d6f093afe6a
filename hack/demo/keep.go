package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// keepUntil says how to enter the namespaces, which this process holds open, and waits until ctx ends.
func keepUntil(ctx context.Context, l *lab.Lab, p programs, out io.Writer) {
	fmt.Fprintf(out, "\nThe rules stay, and the proxy has ended. Ctrl-C removes everything. As root, in another terminal:\n")
	for _, host := range []struct {
		name string
		*lab.Host
	}{{"the node", l.Node}, {"the client outside", l.Outside}} {
		fmt.Fprintf(out, "  %s sh                    # %s\n", enter(host.NetNS().Fd()), host.name)
	}
	fmt.Fprintf(out, "  %s %s services\n", enter(l.Node.NetNS().Fd()), short(p.ruledump))
	<-ctx.Done()
}

// enter is the command that runs another one in a namespace. What was made in a user namespace is entered by that.
func enter(fd uintptr) string {
	user := ""
	if isSecondSelf() {
		user = fmt.Sprintf(" --user=/proc/%d/ns/user --preserve-credentials", os.Getpid())
	}
	return fmt.Sprintf("nsenter%s --net=/proc/%d/fd/%d", user, os.Getpid(), fd)
}
