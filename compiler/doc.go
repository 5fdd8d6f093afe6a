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
// and not on the number of Services; session affinity is the exception (affinity.go). Where very many frontends go to
// one chain, they are in a set of that chain instead of service-ips (endpointchains.go). docs/ruleset.md explains each
// chain and map.
//
// A Service port claims frontends (claim.go). Each claim has a plan: a chain, endpoints, or a refusal (plan.go). The
// first claim of a frontend owns it, and its plan becomes elements in the draft (element.go, write.go).
//
//	c, err := compiler.New(compiler.Default())
//	…
//	c.Apply(changes)
//	if _, err := conn.Commit(ctx, c.Transaction()); err == nil {
//		c.Committed()
//	}
package compiler
