// Package nodelocalv1 is the node-local API, version 1: the messages and the gRPC service NodeLocal,
// generated from nodelocal.proto. That file documents each message and field: its unit, its default,
// and the rule of Kubernetes that it comes from. It is all that a program in another language needs.
//
// In Go, use package nodelocal to follow a server, and package server (nodelocal/server) to be one.
//
// Fields may be added within version 1; a client ignores those that it does not know. released.binpb
// is the description of the last released version, with which `make check-api` compares.
package nodelocalv1
