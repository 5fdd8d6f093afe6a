// Package diffstore finds out what a dataplane lacks: write into a [Store] what there should be, read what to change, apply it,
// and say that it was applied.
//
//	store := diffstore.New[string, int]()
//
//	store.Begin() // a full state follows; without Begin it is an increment
//	store.Set("web", 80)
//	store.Set("dns", 53)
//
//	for key := range store.Deleted() { … }        // in order
//	for key, value := range store.Updated() { … } // in order
//	store.Commit() // not if that failed: then the same differences are there the next time
//
// Apply does the last three for dataplanes that take one difference at a time, and keeps those that were refused.
//
// It is for backends that compute their own records (virtual servers, map entries, lines of a file) anew from all Service ports
// and want to touch only those that differ; [ServicePorts] is a Store of the Service ports themselves.
//
// Three rules make it safe:
//
//   - A difference is one between what was committed and what is wanted now. It does not matter how often and with what the Store was
//     written in between, and a failure loses nothing.
//   - Values are compared, not their hashes, with the function that the Store was made with.
//   - What was half done is said to be unknown (Invalidate, InvalidateOne), and is a difference until it is committed.
//
// The package needs the standard library and package model, nothing else.
package diffstore
