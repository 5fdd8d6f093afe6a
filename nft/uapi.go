package nft

// Constants of linux/netfilter.h and linux/netfilter/nf_tables.h for which x/sys/unix has no names, with the kernel
// that brought them where that is later than 5.4.

// Messages (enum nf_tables_msg_types).
const (
	nftMsgNewFlowtable = 22
	nftMsgGetFlowtable = 23
	nftMsgDelFlowtable = 24
	nftMsgDestroyTable = 26 // 6.3
)

// nfnlBatchGenID makes the kernel refuse a batch for another generation (enum nfnl_batch_attributes, 4.12).
const nfnlBatchGenID = 1

// Verdicts of a base chain's policy.
const (
	nfDrop   = 0
	nfAccept = 1
)

// Attributes and flags of tables.
const (
	nftaTableUserdata = 6 // 5.10
	nftaTableOwner    = 7 // 5.12

	tableDormant = 1
	tableOwner   = 2 // 5.12
	tablePersist = 4 // 6.9
)

// Attributes and flags of chains.
const (
	nftaChainFlags    = 10 // 5.7
	nftaChainUserdata = 12 // 5.10

	chainBinding = 4 // 5.9: belongs to a rule
)

// Attributes and flags of sets.
const (
	nftaSetExpr        = 17 // 5.7
	nftaSetExpressions = 18 // 5.11
	nftaSetCount       = 20 // 6.15

	nftaSetDescConcat = 2 // 5.6
	nftaSetFieldLen   = 1 // 5.6

	nftSetConcat = 0x80 // 5.6
)

// Attributes and flags of elements.
const (
	nftaSetElemKeyEnd      = 10 // 5.6
	nftaSetElemExpressions = 11 // 5.11

	elemCatchAll = 2 // 5.13
)
