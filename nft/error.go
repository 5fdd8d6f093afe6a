package nft

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// What errors.Is finds in a refused transaction.
var (
	// ErrTableOwned says that another process owns the table (flag owner), or that this one did and its connection was
	// closed. Trying again helps only once that process has gone or has given the table up.
	ErrTableOwned = errors.New("the table belongs to another process")
	// ErrSetFull says that a set has as many elements as its Size allows.
	ErrSetFull = errors.New("the set is full")
	// ErrTooLarge says that the socket does not take a batch of that size, so that nothing was sent.
	ErrTooLarge = errors.New("the batch is larger than the socket takes")
)

// CommitError is the kernel's refusal of a transaction. Nothing of the transaction was
// carried out. It unwraps to the kernel's errno.
type CommitError struct {
	// Err is the errno.
	Err error
	// Step is the refused step in nft's syntax, reduced to the one rule or element
	// that the kernel named where it named one (extended acknowledgement, kernel 4.20 for nf_tables);
	// empty when the kernel refused the transaction as a whole.
	Step string
	// Message is the kernel's own explanation, if it gave one.
	Message string
	// Others is how many more steps were refused.
	Others int
	// unread says that more answers of the kernel may wait, which the socket could not hold.
	unread bool
}

func (e *CommitError) Error() string {
	what := e.Step
	if what == "" {
		what = "the transaction as a whole"
	}
	text := fmt.Sprintf("nft: kernel refused %s: %v", what, e.Err)
	if e.Message != "" {
		text += " (" + e.Message + ")"
	}
	if hint := e.hint(); hint != "" {
		text += "; " + hint
	}
	if e.Others > 0 {
		text += fmt.Sprintf("; %d more steps refused", e.Others)
	}
	return text
}

// Unwrap returns the errno.
func (e *CommitError) Unwrap() error { return e.Err }

// Is reports whether the refusal is ErrTableOwned or ErrSetFull.
func (e *CommitError) Is(target error) bool {
	switch target {
	case ErrTableOwned:
		// Without the privilege no step is looked at, so a refused step met the owner.
		return errors.Is(e.Err, unix.EPERM) && e.Step != ""
	case ErrSetFull:
		return errors.Is(e.Err, unix.ENFILE) && strings.HasPrefix(e.Step, stepNames[AddElements])
	}
	return false
}

// needsPrivilege says what EPERM means for anything but a table with an owner.
const needsPrivilege = "nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace"

// hint says what the refusal usually means, where it is not obvious.
func (e *CommitError) hint() string {
	switch {
	case errors.Is(e, ErrTableOwned):
		return ErrTableOwned.Error() + " (flag owner)"
	case errors.Is(e, ErrSetFull):
		return ErrSetFull.Error()
	}
	return hintFor(e.Err)
}

// hintFor says what an errno usually means for a ruleset, where it is not obvious.
func hintFor(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return needsPrivilege
	case errors.Is(err, unix.ENOSPC):
		return ErrSetFull.Error()
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK):
		return "chains call each other in a loop or more than 16 deep"
	}
	return ""
}
