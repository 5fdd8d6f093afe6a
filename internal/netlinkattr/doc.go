// Package netlinkattr reads and writes netlink attributes: a length and a type of 16 bits each, in the byte order of
// the machine, then a payload that is padded to a multiple of four bytes.
//
// It exists because lists of set elements are the hot path of a sync and of a check. AttributeEncoder and
// AttributeDecoder of mdlayher/netlink allocate for each level of nesting of each element; this package appends to one
// slice and reads without a copy. BenchmarkEncodeElements in package nft compares both.
package netlinkattr
