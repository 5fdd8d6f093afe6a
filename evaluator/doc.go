// Package evaluator walks packets through nftables rulesets in memory and returns their fates.
//
// Tests use it to check rulesets without a kernel, and tools to explain where a packet went and why. For one packet it
// returns every possible [Fate], because a rule may draw a random number. Each fate has its [Path]: the hooks, chains
// and rules that led there, and the elements that the rules found.
//
// The package uses the ruleset types of nft, and knows nothing of Services. The caller supplies the state that is not
// in the rules: the machine's own addresses and, for rules that need them, the outgoing interfaces ([Host]); and the
// elements that earlier packets added to dynamic maps ([Added]).
//
// It follows the kernel, also where nft's manual is silent:
//
//   - A packet that arrives runs through prerouting. If its destination is local then, it runs through input, else
//     through forward and postrouting. A packet that a process sends runs through output and postrouting. If its
//     destination is local then, it comes back in by lo, through prerouting and input.
//   - NAT chains see the first packet of a connection only: once for its destination (prerouting or output) and once
//     for its source (postrouting or input). They run at dstnat or srcnat, whatever their own priority.
//   - accept ends the base chain, but not the hook. drop and reject end everything.
//   - In output, oifname is the interface towards the destination before translation.
//
// It does not guess. If a packet meets a statement, field or verdict that the package does not model, or a field whose
// value the caller did not supply, the result is an error that names it. Not modelled are reply packets, fragments,
// unreachable routes, and source validation (rp_filter).
//
// Tests in the package integration compare it with a real kernel, on random rulesets and packets.
package evaluator
