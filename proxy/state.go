package proxy

// state is what the backend knows of the kernel's tables.
type state struct {
	kind stateKind
	// reason says for stateDiverged how the tables differ.
	reason string
}

type stateKind uint8

const (
	// stateUnknown: nothing was committed yet, or the outcome of the last commit is not known. The next Sync reads the tables.
	stateUnknown stateKind = iota
	// stateApplied: the tables are as committed last, as far as is known.
	stateApplied
	// stateDiverged: somebody else changed the tables, and the kernel refused the repair. Each check tries it again.
	stateDiverged
)
