// Package manifests feeds a tracker from a directory of Kubernetes manifests, as
// `kubectl get -o yaml` writes them: a node without an API server, a test, a look at what
// a cluster's objects would become.
//
// Files named *.yaml, *.yml and *.json are read, in name order, and may hold many
// documents and Lists. Services (v1), EndpointSlices (discovery.k8s.io/v1), Nodes (v1)
// and ServiceCIDRs (networking.k8s.io/v1) count; other kinds are ignored. Decoding is
// strict: a field that Kubernetes does not know is an error that names the file, the
// document and the field, since a typo would otherwise quietly take a Service's
// endpoints away.
//
// [Load] reads a directory once and fails on any error. A [Source] watches it, and an
// error in a file only means that the file's last good objects stay.
//
// Best write a file under another name (a hidden one is never read) and rename it: a
// document that is cut off in the middle may still be valid YAML with fewer fields.
package manifests
