// Package apiservertest is a Kubernetes API server for tests: a real TCP listener with TLS and
// HTTP/2, a bearer token, and the part of the API that watchers of Services live on. Lists,
// watches, streaming lists (sendInitialEvents), bookmarks, resource versions, label and field
// selectors and both encodings (JSON and protobuf) behave as kube-apiserver's do.
//
// What a real server does only by chance it does on command: drop every connection, go away and
// come back on the same port, end all watches, forget its history, refuse a resource, or never answer for it.
//
// It keeps objects as they are written: there is no defaulting, no validation and no
// authorization beyond the token. [StartBinaries] starts the real thing where that matters.
package apiservertest
