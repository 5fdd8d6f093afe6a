package proxy

import (
	"time"

	"github.com/nftproxy/nftproxy/nft"
)

// Hooks are called as things happen, for metrics. Each may be nil.
type Hooks struct {
	// OnCommit is called after each commit.
	OnCommit func(nft.CommitStats)
	// OnCompile is called in each Sync with the time that the compiler took.
	OnCompile func(time.Duration)
	// OnForeignChange is called when a check finds that somebody else changed the tables.
	OnForeignChange func()
	// OnDiverged is called with true each time the kernel refuses to have the tables repaired, and with false once a
	// repair succeeded.
	OnDiverged func(bool)
	// OnRepair is called after the tables were reconciled because they were not as committed.
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
