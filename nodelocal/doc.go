// Package nodelocal is the client of the node-local API. The server applies Kubernetes' rules about
// Services. The client keeps a [model.Backend], in this process, up to date with the result.
//
//	err := nodelocal.Run(ctx, "unix:///run/nftproxy/node-local.sock", backend, nodelocal.Options{})
//
// A [Client] keeps the last state that it received. When the server goes away the backend keeps
// what it has. When a server is there again, perhaps of another version, the backend receives only
// the difference, even if the server had to send everything.
//
// The package imports gRPC and nothing of Kubernetes. docs/node-local.md describes the protocol.
package nodelocal
