package nft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// probeTable returns a name for a table that exists only inside a probe's transaction. It is a new one each time, so
// that nobody has a table of that name.
func probeTable() string { return fmt.Sprintf("nftproxy-probe-%016x", rand.Uint64()) }

// Probe finds out whether the kernel has the features (FeatureBasic, if none is named) in tables of these families (both, if
// none is named). It returns a MissingError that lists what is missing. No rule of it takes effect: each probe is one transaction that ends by deleting the table that it added; if the table has to be read,
// it has no chains, and another transaction deletes it. If privileges are missing, or the kernel stays short of memory or
// busy, the error is Commit's.
func (c *Conn) Probe(ctx context.Context, families []Family, wanted ...Feature) error {
	if len(families) == 0 {
		families = Families[:]
	}
	if len(wanted) == 0 {
		wanted = []Feature{FeatureBasic}
	}
	commit := func(tx Transaction) error { return c.commitProbe(ctx, tx) }
	return probe(families, wanted, commit, func(t *Table) (*Table, error) { return c.ReadTable(ctx, t.Family, t.Name) })
}

// commitProbe commits the transaction of a probe. It retries for a moment if the kernel may then give another
// answer.
func (c *Conn) commitProbe(ctx context.Context, tx Transaction) error {
	const firstWait, lastWait = 10 * time.Millisecond, 320 * time.Millisecond
	for wait := firstWait; ; wait *= 2 {
		_, err := c.Commit(ctx, tx)
		if !isPassing(err) || wait > lastWait {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// isPassing reports whether an error comes from a lack of memory, or from what others do at the time. It says nothing
// about the kernel's features.
func isPassing(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOMEM, unix.ENOBUFS, unix.EBUSY, unix.EAGAIN, unix.EINTR, unix.ERESTART},
		func(errno error) bool { return errors.Is(err, errno) })
}

func probe(families []Family, wanted []Feature, commit func(Transaction) error, read func(*Table) (*Table, error)) error {
	var missing MissingError
	for _, f := range families {
		for i := range features {
			s := &features[i]
			if !slices.Contains(wanted, s.partOf) {
				continue
			}
			err := s.probe(f, commit, read)
			switch {
			case err == nil:
			case !refusesProbe(err) && !saysMissing(err), errors.Is(err, unix.EACCES):
				return err
			default:
				missing = append(missing, Missing{Feature: f.String() + ": " + s.name, Option: s.Option(f), Err: errnoOf(err)})
				if s.essential {
					return missing
				}
			}
		}
	}
	if len(missing) > 0 {
		return missing
	}
	return nil
}

// probe returns the kernel's answer to a table with the feature.
func (s *featureSpec) probe(f Family, commit func(Transaction) error, read func(*Table) (*Table, error)) error {
	t := &Table{Family: f, Name: probeTable()}
	s.use(t)
	add, remove := Diff(nil, t), Step{Op: DeleteTable, Table: t}
	if s.kept == nil {
		add.Steps = append(add.Steps, remove)
		return commit(add)
	}
	if err := commit(add); err != nil {
		return err
	}
	got, err := read(t)
	if refused := commit(Transaction{Steps: []Step{remove}}); err == nil {
		err = refused
	}
	if err == nil && (got == nil || !s.kept(got)) {
		err = unix.EOPNOTSUPP
	}
	return err
}

// refusesProbe reports whether the kernel has refused the transaction of a probe, and neither for want of a privilege nor
// for a reason that passes. Then it lacks something.
func refusesProbe(err error) bool {
	_, refused := errors.AsType[*CommitError](err)
	return refused && !errors.Is(err, unix.EPERM) && !isPassing(err)
}

// saysMissing reports whether an error that is not the kernel's answer to a transaction means that something is
// missing. A sandbox between the program and the kernel, such as gVisor, refuses at the socket.
func saysMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return err
}
