package proxy

// state is the backend's knowledge of the kernel's tables.
type state struct {
	kind stateKind
	// reason is, for stateDiverged, the difference.
	reason string
}

type stateKind uint8

const (
	// stateNew: this process has committed nothing yet. The next Sync reads the tables.
	stateNew stateKind = iota
	// stateUnknown: reconciling the tables failed. The next Sync reads them.
	stateUnknown
	// stateApplied: as far as is known, the tables are as committed last.
	stateApplied
	// stateDiverged: somebody else changed the tables, and the repair failed. Each check and each Sync tries again.
	stateDiverged
)

// committed reports whether this process has committed the tables before.
func (b *Backend) committed() bool { return b.state.kind != stateNew }

// lost notes that the tables may no longer be as committed.
func (b *Backend) lost() {
	if b.state.kind == stateApplied {
		b.state = state{kind: stateUnknown}
	}
}
