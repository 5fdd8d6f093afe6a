package proxy

import (
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Hooks are called on events, for metrics. Each may be nil. They must not call the Backend.
type Hooks struct {
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

func (b *Backend) callOnDiverged(yes bool) {
	if b.hooks.OnDiverged != nil {
		b.hooks.OnDiverged(yes)
	}
}

func (b *Backend) afterRepair() {
	if b.flows != nil {
		b.flows.repaired()
	}
	if b.hooks.OnRepair != nil {
		b.hooks.OnRepair()
	}
}
