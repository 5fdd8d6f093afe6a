package nft

import (
	"context"

	"golang.org/x/sys/unix"
)

// ProbeCounters finds out whether the elements of a set can count (Set.Counter, kernel 5.7). If not, it returns a
// MissingError. An older kernel accepts such a set and leaves out the counters. So the probe adds a table with a new
// name and without chains, reads it, and deletes it.
func (c *Conn) ProbeCounters(ctx context.Context) error {
	set := &Set{Name: "probe", Key: Concat{IPDaddr}, Counter: true}
	table := &Table{Family: FamilyIP, Name: probeTable(), Sets: []*Set{set}}
	_, err := c.Commit(ctx, Diff(nil, table))
	switch {
	case refusesProbe(err):
		return missingCounters(errnoOf(err))
	case err != nil:
		return err
	}
	got, err := c.ReadTable(ctx, table.Family, table.Name)
	if _, refused := c.Commit(ctx, Remove(table.Family, table.Name)); err == nil {
		err = refused
	}
	if err != nil {
		return err
	}
	if got == nil || got.Set(set.Name) == nil || !got.Set(set.Name).Counter {
		return missingCounters(unix.EOPNOTSUPP)
	}
	return nil
}

func missingCounters(err error) error {
	return MissingError{{Feature: "counters of the elements of sets", Option: "CONFIG_NF_TABLES of kernel 5.7 or later", Err: err}}
}
