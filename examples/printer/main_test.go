package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

const web = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1}
- {addresses: [10.244.2.6], nodeName: node-2}
`

func TestPrinter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(path, []byte(web), 0o600); err != nil {
		t.Fatal(err)
	}
	target, tr := flows.Serve(t, path)
	p := lab.NewProcess(t, exec.Command(flows.Build(t), "-node-local-source", target, "-hostname-override", "node-1"))
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.Says(t, "shop/web/TCP (IPv4) on 10.96.0.10 port 80 to 2 endpoints\n")
	tr.DeleteService("shop", "web")
	p.Says(t, "gone: shop/web/TCP (IPv4)\n")
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
}
