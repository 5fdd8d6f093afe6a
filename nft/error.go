package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Errors of this package are told apart with errors.Is and errors.As:
//
//	ErrInvalid             nothing was sent: the kernel cannot take a name, a key, a value or a rule
//	ErrTooLarge            nothing was sent: the socket does not take a batch of that size
//	ErrTableOwned          refused: the table belongs to another process
//	ErrSetFull             refused: a set has as many elements as its Size allows
//	*CommitError           refused, for these reasons or any other: names the step, unwraps to the kernel's errno
//	MissingError           a probe found that the kernel lacks something
//	ErrGenerationMoved     others committed while the ruleset was read, or the kernel cut a listing short;
//	                       refused: others committed since the generation of the transaction
//	fs.ErrPermission       the process lacks CAP_NET_ADMIN, or the table has an owner
//	net.ErrClosed          the Conn is closed
//	context.Canceled,      the context was done. A transaction was not sent
//	context.DeadlineExceeded
//	os.ErrDeadlineExceeded the kernel did not answer within ten seconds. It is unknown whether a transaction was applied
//
// All other errors are an errno of the socket or of a listing, or an answer that cannot be decoded. If Commit returns
// one that is not in the list, it is unknown whether the transaction was applied: read or compare the tables.
var (
	// ErrInvalid says that the kernel cannot take a value. The error's text names the object and the fault.
	ErrInvalid = errors.New("not valid")
	// ErrTableOwned says that another process owns the table (flag owner), or that this process owned it and its
	// connection was closed.
	ErrTableOwned = errors.New("the table belongs to another process")
	// ErrSetFull says that a set has as many elements as its Size allows.
	ErrSetFull = errors.New("the set is full")
	// ErrTooLarge says that the socket does not take a batch of that size. The error's text names the sysctl to set.
	ErrTooLarge = errors.New("the batch is larger than the socket takes")
	// ErrGenerationMoved says that another program committed while nf_tables was read, or since the Generation of a
	// Transaction. Try again.
	ErrGenerationMoved = errors.New("the ruleset changed while it was read")
)

type invalidError struct{ error }

func (e invalidError) Is(target error) bool { return target == ErrInvalid }

func (e invalidError) Unwrap() error { return e.error }

func invalidf(format string, args ...any) error { return invalidError{fmt.Errorf(format, args...)} }

// Missing is something that the running kernel cannot do.
type Missing struct {
	// Feature says which rules need it, such as "ip: numgen". Option is the kernel configuration option that provides it,
	// perhaps as a module, such as "CONFIG_NFT_NUMGEN".
	Feature, Option string
	// Err is the kernel's answer, an errno.
	Err error
}

// MissingError lists what the running kernel lacks.
type MissingError []Missing

// Error lists all features with their options.
func (e MissingError) Error() string {
	var lines []string
	for _, m := range e {
		lines = append(lines, fmt.Sprintf("%s needs %s: %v", m.Feature, m.Option, m.Err))
	}
	return "the kernel lacks nf_tables features: " + strings.Join(lines, "; ")
}

// CommitError is the kernel's refusal of a transaction. Nothing of the transaction was
// carried out. It unwraps to the kernel's errno.
type CommitError struct {
	// Err is the errno, a syscall.Errno.
	Err error
	// Step is the refused step in nft's syntax, reduced to one rule, or to the element that the kernel names; if it
	// names none, the first one, followed by "…". Step is empty when the kernel refused the transaction as a whole.
	Step string
	// Message is the kernel's own explanation, if it gave one.
	Message string
	// Refused are all refused steps in their order. A step of several messages can stand there several times. It is empty
	// when the kernel refused the transaction as a whole.
	Refused []Refusal
	// unread says that the socket may hold more answers of the kernel, or could not hold all.
	unread bool
}

// Refusal is a step that the kernel refused.
type Refusal struct {
	Step Step
	// Err is the errno, a syscall.Errno.
	Err error
}

// Error names the step, the errno, the kernel's explanation and the usual cause.
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
	if more := len(e.Refused) - 1; more > 0 {
		text += fmt.Sprintf("; %d more steps refused", more)
	}
	return text
}

// Unwrap returns the errno.
func (e *CommitError) Unwrap() error { return e.Err }

// Is reports whether the refusal is ErrTableOwned, ErrSetFull or ErrGenerationMoved.
func (e *CommitError) Is(target error) bool {
	switch target {
	case ErrTableOwned:
		// Without the privilege no step is looked at, so a refused step met the owner.
		return errors.Is(e.Err, unix.EPERM) && e.Step != ""
	case ErrSetFull:
		return errors.Is(e.Err, unix.ENFILE) && strings.HasPrefix(e.Step, stepNames[AddElements])
	case ErrGenerationMoved:
		return errors.Is(e.Err, unix.ERESTART)
	}
	return false
}

// needsPrivilege explains EPERM, except for a table with an owner.
const needsPrivilege = "nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace"

// hint returns the usual cause of the refusal, where it is not obvious.
func (e *CommitError) hint() string {
	switch {
	case errors.Is(e, ErrTableOwned):
		return ErrTableOwned.Error() + " (flag owner)"
	case errors.Is(e, ErrSetFull), errors.Is(e.Err, unix.ENOSPC):
		return ErrSetFull.Error()
	case errors.Is(e.Err, unix.EPERM):
		return needsPrivilege
	case errors.Is(e.Err, unix.ELOOP), errors.Is(e.Err, unix.EMLINK):
		return "chains call each other in a loop or more than 16 deep"
	}
	return ""
}

// describe prints the step of a message, reduced to its rule, or to the element at the offset that the kernel names.
func (m *message) describe(offset int) string {
	s := m.step
	switch s.Op {
	case DestroyTable:
		s.Op = DeleteTable
	case AddRules:
		chain := *s.Chain
		chain.Rules = chain.Rules[m.rule : m.rule+1]
		s.Chain = &chain
	case AddElements, DeleteElements:
		if e, ok := m.elementAt(offset - unix.NLMSG_HDRLEN); ok {
			return s.elementLine(e, "")
		}
		more := ""
		if s.Len() > 1 {
			more = ", …"
		}
		return s.elementLine(s.first(), more)
	}
	return s.String()
}

func (s Step) elementLine(e Element, more string) string {
	var b strings.Builder
	b.WriteString(s.head() + " { ")
	s.appendElement(&b, e)
	return b.String() + more + " }"
}

// first returns the first element in the order of keys.
func (s Step) first() (first Element) {
	none := true
	for e := range s.EachElement() {
		if none || compareElements(e, first) < 0 {
			first, none = e, false
		}
	}
	return first
}

// elementAt finds the element whose attributes cover the offset in the message's data.
func (m *message) elementAt(offset int) (Element, bool) {
	list, inside, _ := netlinkattr.At(m.Data[nfgenmsgLen:], offset-nfgenmsgLen)
	element, _, ok := netlinkattr.At(list, inside)
	if !ok {
		return Element{}, false
	}
	e, err := decodeElement(element)
	return e, err == nil
}
