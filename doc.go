// Package nftproxy is the overview of this module; it has no code. The module is a Kubernetes
// service proxy that does kube-proxy's job with nftables, over raw netlink, and the libraries that
// it is made of.
//
// The command is cmd/kube-proxy. The command cmd/ruledump prints and explains rulesets.
//
// # Where to start
//
//   - To write a backend for Services, implement model.Backend. docs/writing-a-proxy.md has a
//     complete small proxy.
//   - To use nftables from Go, import nft.
//   - To look into rulesets without a kernel, import evaluator.
//   - To read how the parts fit together, see docs/architecture.md.
//
// # Packages for Services
//
//   - model: the node-local view of Services, as plain values; the interface of a backend, the loop
//     that calls it, and a DiffStore for backends that apply differences. It imports nothing of
//     this module.
//   - tracker: Services, EndpointSlices, the Node and ServiceCIDRs in, changes of the model out.
//   - source/apiserver: feeds a tracker from an API server.
//   - sysctl: the kernel parameters that kube-proxy sets.
//
// # Packages for nftables
//
//   - nft: tables, chains, rules and sets as Go values; print, diff, commit, read back, listen.
//   - compiler: the model in, rulesets and transactions out; no I/O.
//   - evaluator: walks packets through rulesets in memory.
//   - conntrack: lists and deletes entries of the connection tracking table.
//   - proxy: the Backend that compiles the model, commits it, and repairs the tables.
//
// # The node-local API
//
//   - nodelocal: a client that feeds a backend from a node-local server.
//   - nodelocal/server: the server, on top of a tracker.
//   - nodelocal/v1: the messages and the gRPC service.
//
// # Examples
//
//   - examples: an overview of the examples.
//   - examples/*: small backends on the node-local API, each a program.
//
// # Stability
//
// Nothing is released yet. Until version 1 any exported name may change between minor versions;
// CHANGELOG.md lists these changes. docs/releasing.md describes how a release is checked.
package nftproxy
