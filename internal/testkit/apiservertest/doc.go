// Package apiservertest is a Kubernetes API server for tests. It has a real TCP listener with TLS
// and HTTP/2, a bearer token, and the part of the API that watchers of Services use. Lists,
// watches, streaming lists (sendInitialEvents), bookmarks, resource versions, label and field
// selectors and both encodings (JSON and protobuf) behave as those of kube-apiserver.
//
// It fails on command, where a real server fails only by chance: it drops every connection, goes
// away and comes back on the same port, ends all watches, forgets its history, refuses a resource,
// or never answers for it.
//
// It keeps objects as they are written: there is no defaulting, no validation, and no authorization
// beyond the token. [StartBinaries] starts the real programs where that matters.
package apiservertest
