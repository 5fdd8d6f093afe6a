// Package nodelocal is the client of the node-local API. The server applies Kubernetes' rules about Services. The
// client keeps a [model.Backend] in this process up to date with the result.
//
//	err := nodelocal.Run(ctx, "unix:///run/nftproxy/node-local.sock", backend, nodelocal.Options{})
//
// A [Client] keeps the last state. Without a server the backend keeps its state, too. From the next server, perhaps of
// another version, the backend receives the difference alone, even if the server sends everything.
//
// The package imports gRPC and nothing of Kubernetes. docs/node-local.md describes the protocol.
package nodelocal
