package proxy

// state says whether the kernel's tables are as wanted, as far as the backend knows.
type state struct {
	kind stateKind
	// reason says for stateDiverged how the tables differ.
	reason string
}

type stateKind uint8

const (
	// stateNew: this process has committed nothing yet. The next Sync reads the tables.
	stateNew stateKind = iota
	// stateUnknown: the outcome of the last commit is not known. The next Sync reads the tables.
	stateUnknown
	// stateApplied: as far as is known, the tables are as committed last.
	stateApplied
	// stateDiverged: somebody else changed the tables, and the kernel refused the repair. Each check and each Sync
	// tries again.
	stateDiverged
)

// committed reports whether this process has committed the tables before.
func (b *Backend) committed() bool { return b.state.kind != stateNew }

// lost says that the tables may not be as committed any more.
func (b *Backend) lost() {
	if b.state.kind == stateApplied {
		b.state = state{kind: stateUnknown}
	}
}
