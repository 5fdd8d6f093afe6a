// Package model is the node-local view of Services: for each Service port, the addresses that clients dial and the
// endpoints that this node sends them to. All rules of Kubernetes are already applied.
//
// A tracker produces it from Services, EndpointSlices, the Node and ServiceCIDRs; a backend consumes it. The package
// has neither Kubernetes types nor nftables, so a backend needs to import nothing else. KEP-2104 calls this the
// node-local state.
package model
