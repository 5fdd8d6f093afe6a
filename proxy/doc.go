// Package proxy is a model.Backend for nftables. It compiles the model, commits the tables to the kernel, and repairs
// them after others changed them.
//
// [Backend.Sync] applies the changes to the compiler and commits the difference (commit.go). If the kernel's tables are
// not known to be as committed last (state.go), it reads them and commits the difference with the wanted ones
// (reconcile.go); another program's tables are replaced while stand-ins serve (takeover.go).
//
// [Backend.Watch] runs beside the Syncs. It checks the tables when somebody else commits (watch.go, check.go), and
// keeps the maps of session affinity free of clients whose endpoint went (affinity.go, affinityreconciler.go).
package proxy
