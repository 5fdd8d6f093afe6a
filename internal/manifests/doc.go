// Package manifests feeds a tracker from a directory of Kubernetes manifests, as `kubectl get -o yaml` writes them. It
// is for nodes without an API server, for tests, and for compiling the objects of a cluster elsewhere.
//
// It reads files named *.yaml, *.yml and *.json in name order. A file may hold many documents and Lists. Services (v1),
// EndpointSlices (discovery.k8s.io/v1), Nodes (v1) and ServiceCIDRs (networking.k8s.io/v1) count; other kinds are
// ignored. Decoding is strict: an unknown field is an error that names the file, the document and the field, because a
// typo could silently remove a Service's endpoints.
//
// [Load] reads a directory once and fails on any error. A [Source] watches it. It is synced when it
// has read the directory and each file once. Later it keeps the last good objects of a file with an
// error, and all objects while the directory is missing or empty. A blank file is an error.
//
// Write a file under another name first (a hidden file is never read) and then rename it. A
// document that is cut off in the middle may still be valid YAML with fewer fields.
package manifests
