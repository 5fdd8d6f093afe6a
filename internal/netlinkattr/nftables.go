package netlinkattr

// Constants of linux/netfilter/nfnetlink.h and nf_tables.h for which x/sys/unix has no names, with the kernel that
// brought them where that is later than 5.4.
const (
	// MsgNewFlowtable and the following are types of messages.
	MsgNewFlowtable = 22
	MsgGetFlowtable = 23
	MsgDelFlowtable = 24
	MsgDestroyTable = 26 // 6.3

	// BatchGenID makes the kernel refuse a batch for another generation.
	BatchGenID = 1

	TableUserdata = 6 // 5.10
	TableOwner    = 7 // 5.12

	TableFlagDormant = 1
	TableFlagOwner   = 2 // 5.12
	TableFlagPersist = 4 // 6.9

	HookDevs     = 4 // 5.5
	DevicePrefix = 2 // 6.18

	ChainFlags    = 10 // 5.7
	ChainUserdata = 12 // 5.10

	// ChainFlagBinding says that the chain belongs to a rule.
	ChainFlagBinding = 4 // 5.9

	SetExpr        = 17 // 5.7
	SetExpressions = 18 // 5.11
	SetCount       = 20 // 6.15

	SetDescConcat = 2 // 5.6
	SetFieldLen   = 1 // 5.6

	SetFlagConcat = 0x80 // 5.6
	DynsetDelete  = 2    // 5.4

	SetElemKeyEnd      = 10 // 5.6
	SetElemExpressions = 11 // 5.11

	SetElemFlagCatchAll = 2 // 5.13
)
