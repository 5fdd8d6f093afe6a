// Package apiserver is the tracker.Source that clusters use: it watches Services, EndpointSlices,
// this node's Node and ServiceCIDRs at the API server and hands them on as they change.
//
// It asks for no more than a proxy needs. The server leaves out headless EndpointSlices and
// Services that belong to another proxy, and no object is kept once it is handed on.
//
// Whatever goes wrong at the API server is retried with back-off, for ever: a proxy that keeps its
// last known state serves better than one that exits.
package apiserver
