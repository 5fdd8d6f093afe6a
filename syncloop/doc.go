// Package syncloop calls a [model.Backend] whenever there are changes: one call at a time, with everything
// that arrived meanwhile merged into the next, and again with back-off when it fails. It imports nothing of Kubernetes.
//
// [EmptyGuard] is for sources of changes: it decides whether to believe that there are no Services at all.
package syncloop
