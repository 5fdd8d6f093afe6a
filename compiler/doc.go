// Package compiler turns the node-local model into an nftables ruleset. It does no I/O.
//
// The rules are a fixed program (program.go). Each Service is only elements in that program's maps. For example, the
// ClusterIP 10.96.0.10 with three endpoints is
//
//   - in the map service-ips the element "10.96.0.10 . tcp . 80 : goto cluster-3";
//   - in the map endpoints three elements, such as "10.96.0.10 . tcp . 80 . 0 : 10.244.1.5 . 8080".
//
// Such an address, with protocol and port, is a frontend; a node port is one too. Without endpoints a frontend has an
// element in no-endpoint-services instead. The endpoint chain cluster-3 serves all frontends of its kind with three
// endpoints (endpointchain.go). So the number of chains depends on how many different numbers of endpoints there are
// and not on the number of Services; session affinity is the exception (affinity.go). docs/ruleset.md explains each
// chain and map.
//
// Compilation goes from Service ports over claims (claim.go), of which each has a plan (plan.go), to elements: a
// frontend's owner is the first of its claims, and the owner's plan is put into the draft (family.go).
package compiler
