// Package evaluator walks packets through nftables rulesets in memory and says what becomes of them.
//
// It answers two questions. Tests ask whether a ruleset does what it should, without a
// kernel; a person asks why a packet went where it went. For one packet it returns every
// possible [Fate], since a rule may draw a random number, and for each fate the [Path]:
// the hooks, chains and rules that led there, and the elements that the rules found.
//
// It knows nft's ruleset types only, and nothing of Services. What it must be told is what the kernel knows
// besides rules: which addresses are the node's own and, for rules that ask for it, which way packets leave
// ([Host]); what earlier packets taught dynamic maps ([Learned]).
//
// It follows the kernel, where nft's manual is silent too:
//
//   - A packet that comes in runs through prerouting, then input if its destination is now
//     local, else forward and postrouting. One that a process sends runs through output and postrouting; if its
//     destination is now local it comes back in by lo, through prerouting and input.
//   - NAT chains see the first packet of a connection only, once for its destination (prerouting or output) and
//     once for its source (postrouting or input), and run at dstnat or srcnat whatever their own priority is.
//   - accept ends a base chain and not the hook; drop and reject end everything.
//   - In output, oifname is the way to where the packet was sent, before it is translated.
//
// It does not guess. A statement, field or verdict that it does not model is an error that
// names it, as soon as a packet comes by; so is a field whose value it was not told. It does
// not model reply packets, fragments, routes that lead nowhere, and source validation (rp_filter).
//
// integration's tests compare it with a real kernel, on random rulesets and packets.
package evaluator
