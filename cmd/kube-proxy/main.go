// Command kube-proxy programs a node's nftables with the Services of a Kubernetes cluster.
package main

import (
	"os"
	"time"

	"k8s.io/client-go/transport"
	"k8s.io/component-base/cli"
)

func main() {
	// How often client-go looks whether the file with the client's certificate has changed. It reads files with tokens
	// as often. The default is five minutes, for which a proxy would go on with a certificate that has expired.
	transport.CertCallbackRefreshDuration = time.Minute
	os.Exit(cli.Run(newCommand()))
}
