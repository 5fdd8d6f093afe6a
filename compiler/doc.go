// Package compiler turns the node-local model into an nftables ruleset. It does no I/O.
//
// The rules are a fixed program; each Service is only elements in that program's maps. A
// frontend is one address that clients dial. For each frontend there is
//
//   - in service-ips (or service-nodeports) a verdict, such as "goto cluster-3", where 3 is how
//     many endpoints the frontend has and "cluster" is its kind;
//   - in endpoints (or a sister of it) one element for each endpoint, under the
//     frontend's key and a slot number;
//   - or, when there is nothing to send to, a verdict in no-endpoint-services.
//
// A chain such as cluster-3 serves all frontends of its kind with three endpoints, so the
// number of chains depends on how many different endpoint counts there are and never on
// the number of Services. docs/ruleset.md explains each chain and map.
package compiler
