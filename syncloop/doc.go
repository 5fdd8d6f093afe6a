// Package syncloop calls a [model.Backend] whenever there are changes: one call at a time, with everything
// that arrived meanwhile merged into the next, and again with back-off when it fails. It imports nothing of Kubernetes.
package syncloop
