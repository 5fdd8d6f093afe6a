// Package diffstore keeps the records that a backend wants in its dataplane (virtual servers, map
// entries, lines of a file), and returns the difference to those that the dataplane has.
//
//	store := diffstore.New[string, int]()
//
//	store.Begin() // a full state follows; without Begin it is an increment
//	store.Set("web", 80)
//	store.Set("dns", 53)
//
//	for key := range store.Deleted() { … }        // in order of the keys
//	for key, value := range store.Updated() { … } // in order of the keys
//	store.Commit() // only if all of that succeeded; otherwise the same differences come again
//
// The last three steps are for dataplanes that take all differences in one transaction. For
// dataplanes that take them one by one, [Store.Apply] does the three, and keeps as differences
// those that failed.
//
// A backend may compute all its records anew from all Service ports, and still touch only those
// that differ. [ServicePorts] is a Store of the Service ports themselves.
//
// Three rules make a [Store] safe:
//
//   - A difference is between the last Commit and the wanted state. How often and in which order
//     the Store was written in between does not matter, and a failure loses nothing.
//   - Values are compared themselves, not by their hashes, with the function that the Store was
//     made with.
//   - A change that failed half way makes its key unknown (Invalidate, InvalidateOne). An unknown
//     key is a difference until it is committed.
//
// The package imports the standard library and package model, nothing else.
package diffstore
