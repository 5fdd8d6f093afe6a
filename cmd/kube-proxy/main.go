// Command kube-proxy programs a node's nftables with the Services of a Kubernetes cluster.
package main

import (
	"os"

	"k8s.io/component-base/cli"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}
