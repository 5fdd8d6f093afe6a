// Command printer is the least that a backend can be: it prints what this node has to do for Services, and what changes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
)

type printer struct{ ports model.PortStore }

// Sync implements model.Backend.
func (p printer) Sync(_ context.Context, changes *model.Changes) error {
	p.ports.Write(changes)
	for id := range p.ports.Deleted() {
		fmt.Println("gone:", id)
	}
	for id, port := range p.ports.Updated() {
		fmt.Println(id, "on", port.ClusterIP, "port", port.Port, "to", len(port.Cluster), "endpoints")
	}
	p.ports.Commit()
	return nil
}

func main() {
	target := flag.String("node-local-source", "unix:///run/nftproxy/node-local.sock", "address of the server")
	node := flag.String("hostname-override", "", "name of this node; by default the host's name")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := nodelocal.Run(ctx, *target, printer{model.NewPortStore()}, nodelocal.Options{Node: *node}); err != nil {
		log.Fatal(err)
	}
}
