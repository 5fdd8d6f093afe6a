package nodelocal_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// printer is a backend.
type printer struct{ done func() }

// Sync implements model.Backend.
func (p printer) Sync(_ context.Context, changes *model.Changes) error {
	for id, port := range changes.Ports {
		if port == nil {
			fmt.Println(id, "is gone")
			continue
		}
		fmt.Println(id, "at", netip.AddrPortFrom(port.ClusterIP, port.Port), "has", len(port.Cluster), "endpoints")
	}
	p.done()
	return nil
}

const webManifests = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1}
- {addresses: [10.244.2.6], nodeName: node-2}
`

// serveManifests runs a server over the manifests until ctx ends, as kube-proxy node-local-server --manifests does.
func serveManifests(ctx context.Context, dir, address string) error {
	listener, err := server.Listen(ctx, address, false)
	if err != nil {
		return err
	}
	cluster := tracker.New(tracker.Options{EveryNode: true})
	go func() { _ = manifests.New(dir).Run(ctx, cluster) }()
	go func() { _ = server.New(cluster, server.Options{}).Serve(ctx, listener) }()
	return nil
}

// A backend in a process of its own is this, and nothing of Kubernetes. The server is in the same process for the
// example only.
func ExampleRun() {
	cache, _ := os.UserCacheDir() // nobody else may write to the socket's directory, or to one above it, as to /tmp
	if err := os.MkdirAll(cache, 0o700); err != nil {
		fmt.Println(err)
		return
	}
	dir, err := os.MkdirTemp(cache, "node-local")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(webManifests), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	address := "unix://" + filepath.Join(dir, "node-local.sock")
	if err := serveManifests(ctx, dir, address); err != nil {
		fmt.Println(err)
		return
	}

	if err := nodelocal.Run(ctx, address, printer{done: stop}, nodelocal.Options{Node: "node-1"}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// shop/web/TCP (IPv4) at 10.96.0.10:80 has 2 endpoints
}
