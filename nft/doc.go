// Package nft describes nftables rulesets as Go values, prints them in nft's own syntax, and commits them to the kernel
// over netlink, without the nft program.
//
// It uses nft's words for everything: a Table holds Chains, which hold Rules, and Sets, which hold Elements; a map is a
// Set with data. A *Table is either what a program wants, or what the kernel holds, as Conn.ReadTable returns it.
//
//   - Diff returns the Transaction from one Table to another.
//   - Conn.Commit commits a Transaction, whole or not at all.
//   - A Draft is a Table that records its changes since the last commit. So the Transaction for a small change costs as
//     little as the change.
//   - Conn.Compare returns the Transaction that repairs a table. It compares while the kernel lists, and copies
//     nothing.
//   - Conn.Generation shows whether any program has committed. A Monitor reports who committed what, at a price for all
//     programs on the machine.
//   - Package nfttest has nf_tables in memory, for tests without privileges.
//
// A Conn runs one call after another. Use a connection of its own for a call that takes long, such as Compare: see
// Conn.Another.
//
// The package covers the part of nftables that a service proxy and its neighbours need; the README says which.
// Everything that it can express lists in nft 1.0.6 and later. Rules of other programs are read into
// the same statements. Everything else in a table of the kernel is read as unknown and never misread: an expression as
// an Unknown statement, a set of another kind with an opaque key, other objects as KernelTable.Objects.
package nft
