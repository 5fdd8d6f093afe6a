// Package evaluator walks packets through nftables rulesets in memory and says what becomes of them.
//
// It answers two questions. Tests ask whether a ruleset does what it should, without a
// kernel; a person asks why a packet went where it went. For one packet it returns every
// possible [Fate], since a rule may draw a random number, and for each fate the [Path]:
// the hooks, chains and rules that led there, and the elements that the rules found.
//
// It knows nft's ruleset types only, and nothing of Services. The caller says what the kernel knows besides rules: the
// node's own addresses and, for rules that ask for it, the interface by which packets leave ([Host]); the elements
// that earlier packets added to dynamic maps ([Added]).
//
// It follows the kernel, also where nft's manual is silent:
//
//   - A packet that comes in runs through prerouting, then input if its destination is now
//     local, else forward and postrouting. One that a process sends runs through output and postrouting; if its
//     destination is now local it comes back in by lo, through prerouting and input.
//   - NAT chains see the first packet of a connection only, once for its destination (prerouting or output) and
//     once for its source (postrouting or input), and run at dstnat or srcnat whatever their own priority is.
//   - accept ends a base chain and not the hook; drop and reject end everything.
//   - In output, oifname is the way to where the packet was sent, before it is translated.
//
// It does not guess. When a packet meets a statement, field or verdict that the package does not model, or a field
// whose value the caller did not give, the result is an error that names it. Not modelled are reply packets, fragments,
// routes that lead nowhere, and source validation (rp_filter).
//
// Tests in the package integration compare it with a real kernel, on random rulesets and packets.
package evaluator
