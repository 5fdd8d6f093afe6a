// Package nodelocal drives a [model.Backend] from a server of the node-local API: Kubernetes' rules about Services are
// applied there, and the backend, in this process, forwards traffic.
//
//	err := nodelocal.Run(ctx, "unix:///run/nftproxy/node-local.sock", backend, nodelocal.Options{})
//
// A [Client] keeps the state that the server sent last. So a server that goes away, or is replaced by another version, is no event for the
// backend: it keeps what it has, and when a server is there again it is told the difference, however much the server had to send.
// A backend gets either increments ([model.Backend]) or all there is each time ([FullState]). A Sync that fails is tried again, with
// what came since, until it succeeds.
//
// The package imports gRPC and nothing of Kubernetes. docs/node-local.md describes the protocol.
package nodelocal
