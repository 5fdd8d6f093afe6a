package proxy

// state is the backend's knowledge of the kernel's tables. The functions in this file are its only transitions.
//
// Unknown and diverged tables both differ from the wanted tables, as far as is known. They differ in who reads the tables next.
// After a Sync failed, the loop of Syncs comes back by itself, with a back-off, and has newer changes: a check would
// only compete with it. After a repair failed, there may be no Sync for hours: so each check tries again.
type state uint8

const (
	// stateNew: this process has committed nothing yet. The next Sync reads the tables, and takes over those of another
	// program.
	stateNew state = iota
	// stateUnknown: a commit of a Sync failed, and reconciling the tables failed too. The next Sync reads them.
	stateUnknown
	// stateApplied: as far as is known, the tables are as committed last.
	stateApplied
	// stateDiverged: another program changed the tables, and the repair failed. Each check and each Sync tries again.
	stateDiverged
)

// becomeApplied follows a commit after which the kernel holds the wanted tables, from any state.
func (b *Backend) becomeApplied() {
	b.compiler.Committed()
	if b.state == stateDiverged {
		call(b.hooks.OnDiverged, false)
	}
	b.state = stateApplied
}

// becomeUnknown follows a failure after which the tables may no longer be as committed. A new backend stays new, because
// its tables are still to be taken over; and a diverged one stays diverged.
func (b *Backend) becomeUnknown() {
	if b.state == stateApplied {
		b.state = stateUnknown
	}
}

// becomeDiverged follows a repair that failed, each time.
func (b *Backend) becomeDiverged() {
	b.state = stateDiverged
	call(b.hooks.OnDiverged, true)
}
