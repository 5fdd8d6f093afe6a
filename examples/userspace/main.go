// Command userspace is a Service proxy without any rules: it makes the addresses of Services local to the machine, listens on
// them, and copies bytes to endpoints and back. It knows TCP and UDP, both traffic policies, session affinity and source ranges.
//
// Endpoints see the node as their client, and whoever may not connect is refused instead of dropped.
package main

import (
	"context"
	"flag"
	"log"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
)

func main() {
	target := flag.String("node-local-source", "unix:///run/nftproxy/node-local.sock", "address of the server")
	node := flag.String("hostname-override", "", "name of this node; by default the host's name")
	var pods []netip.Prefix
	flag.Func("cluster-cidr", "where pods are; may be given twice", func(text string) error {
		cidr, err := netip.ParsePrefix(text)
		pods = append(pods, cidr)
		return err
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := newProxy(pods)
	if err != nil {
		log.Fatal("read local routes: ", err)
	}
	if err := nodelocal.Run(ctx, *target, model.FullState(p.sync), nodelocal.Options{Node: *node}); err != nil {
		log.Fatal(err)
	}
}
