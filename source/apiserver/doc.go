// Package apiserver is the tracker.Source for clusters. It watches Services, EndpointSlices, this
// node's Node and ServiceCIDRs at the API server, and forwards them as they change.
//
// The server filters out headless EndpointSlices and Services of other proxies. The source keeps the name of an object,
// not the object.
//
// It retries every failure of the API server with back-off, for ever: a proxy with its last known state serves better
// than none.
package apiserver
