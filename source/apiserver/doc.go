// Package apiserver is the tracker.Source for clusters. It watches Services, EndpointSlices, this
// node's Node and ServiceCIDRs at the API server, and forwards them as they change.
//
// It asks for no more than a proxy needs. The server filters out headless EndpointSlices and
// Services that belong to another proxy. The source keeps the name of an object, not the object.
//
// It retries every failure of the API server with back-off, for ever. A proxy that keeps its last
// known state serves better than one that exits.
package apiserver
