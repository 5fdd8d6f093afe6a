package proxy

import (
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Hooks are called on events, for metrics. Each may be nil. They must not call the Backend.
type Hooks struct {
	// OnCommitting is called with true before a transaction is sent to the kernel, and with false after the kernel's
	// answer. In between the kernel carries the transaction out, and undoes all of it if the process ends.
	OnCommitting func(bool)
	// OnCommit is called after each successful commit.
	OnCommit func(nft.CommitStats)
	// OnCompile is called in each Sync with the time that the compiler took.
	OnCompile func(time.Duration)
	// OnForeignChange is called when a check finds that somebody else changed the tables.
	OnForeignChange func()
	// OnDiverged is called with true each time a repair of the tables fails, and with false once the tables are as wanted
	// again.
	OnDiverged func(bool)
	// OnRepair is called after the tables were repaired: after a foreign change, or after a failed commit.
	OnRepair func()
}

func (b *Backend) callOnCommitting(yes bool) {
	if b.hooks.OnCommitting != nil {
		b.hooks.OnCommitting(yes)
	}
}

func (b *Backend) callOnDiverged(yes bool) {
	if b.hooks.OnDiverged != nil {
		b.hooks.OnDiverged(yes)
	}
}

func (b *Backend) afterRepair() {
	if b.flows != nil {
		b.flows.Gap(b.hasEndpoints)
		b.flows.LookAtAll()
	}
	if b.hooks.OnRepair != nil {
		b.hooks.OnRepair()
	}
}
