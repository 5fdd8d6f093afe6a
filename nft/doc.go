// Package nft describes nftables rulesets as Go values, prints them in nft's own syntax,
// and programs them into the kernel over netlink, without the nft program.
//
// It uses nft's words for everything: a Table holds Chains, which hold Rules, and Sets,
// which hold Elements; a map is a Set with data. Two kinds of values meet here:
//
//   - what somebody wants: a *Table, built by hand or by a compiler;
//   - what the kernel holds: a *Table too, decoded by Conn.ReadTable.
//
// Diff tells them apart as a Transaction, and Conn.Commit applies a Transaction whole or
// not at all. A Draft is a Table that remembers what changed since its last commit, so
// that the Transaction for a small change costs as little as the change.
//
// Tables with much in them are better not copied: Conn.Compare returns the Transaction that repairs a table while the
// kernel lists it. A Listener hears of the commits of others. Each works on a connection of its own, beside the one that
// commits.
//
// Errors are told apart by errors.Is: ErrTableOwned, ErrSetFull, ErrTooLarge and ErrGenerationMoved. Any other refusal
// is a CommitError, which names the step.
//
// The package covers the part of nftables that a service proxy and its neighbours need, not all of it.
// Everything it can express lists in nft 1.0.6 and later; whatever else a table of the
// kernel holds is decoded as an Unknown statement and never misread.
package nft
