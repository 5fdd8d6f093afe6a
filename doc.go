// Package nftproxy is the overview of this module; it has no code. The module is a Kubernetes service proxy that
// replaces kube-proxy, with nftables over raw netlink, and its libraries.
//
// The command is cmd/kube-proxy. The command cmd/ruledump prints and explains rulesets.
//
// # Where to start
//
//   - To write a backend for Services, implement model.Backend. docs/writing-a-proxy.md has a
//     complete small proxy.
//   - To use nftables from Go, import nft.
//   - To look into rulesets without a kernel, import evaluator.
//   - docs/architecture.md lists the public packages and says how the parts fit together.
//
// # Stability
//
// Nothing is released yet. Until version 1 any exported name may change between minor versions;
// CHANGELOG.md lists these changes. docs/releasing.md describes how a release is checked.
package nftproxy
