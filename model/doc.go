// Package model is the node-local view of Services: what one node has to do for
// each Service port, with every Kubernetes rule already applied.
//
// A tracker produces it from Services, EndpointSlices, the Node and ServiceCIDRs;
// a backend consumes it. The package knows neither Kubernetes types nor nftables, so
// that a backend needs to import nothing else. It is the model that KEP-2104 calls the
// node-local state.
package model
