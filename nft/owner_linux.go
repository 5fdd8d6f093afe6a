package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// noteOwned records which tables belong to the socket since the committed transaction.
func (c *Conn) noteOwned(tx Transaction) {
	for _, s := range tx.Steps {
		switch s.Op {
		case AddTable, AdoptTable:
			if s.Table.Owner && s.Table.Persist {
				if c.owned == nil {
					c.owned = map[identity]*Table{}
				}
				t := &Table{Family: s.Table.Family, Name: s.Table.Name, Dormant: s.Table.Dormant, Owner: true, Persist: true}
				c.owned[t.identity()] = t
			}
		case DeleteTable, DestroyTable:
			delete(c.owned, s.Table.identity())
		}
	}
}

// adoptOwned makes the tables of the previous socket belong to the new one, because for the kernel the owner is a
// socket. It leaves out tables that are gone or belong to another program now. The next commit to one of those shows
// that.
func (c *Conn) adoptOwned(ctx context.Context) error {
	ask := func(q query, each func(reply) error) error { return c.socket.ask(ctx, q, each) }
	for _, t := range c.owned {
		have, err := readHeader(ask, t.Family, t.Name)
		if err != nil {
			return fmt.Errorf("nft: take over table %s %s with a new socket: %w", t.Family, t.Name, err)
		}
		if have == nil || !have.orphan() {
			continue
		}
		tx := Transaction{Steps: []Step{{Op: AdoptTable, Table: t}}}
		messages, err := tx.encode()
		if err == nil {
			err = c.socket.commit(c.socket.newBatch(messages, 0))
		}
		if _, refused := errors.AsType[*CommitError](err); err != nil && !refused {
			return fmt.Errorf("nft: take over table %s %s with a new socket: %w", t.Family, t.Name, err)
		}
	}
	return nil
}

// knowsDestroy reports whether the kernel has NFT_MSG_DESTROYTABLE, if the transaction has use for it.
func (c *Conn) knowsDestroy(ctx context.Context, tx Transaction) (bool, error) {
	if !slices.ContainsFunc(tx.Steps, func(s Step) bool { return s.Op == DestroyTable }) {
		return false, nil
	}
	if known := c.canDestroy.Load(); known != nil {
		return *known, nil
	}
	// Destroying a table that does not exist changes nothing, so the generation stays.
	probe := Remove(FamilyIP, probeTable())
	messages, err := probe.encodeFor(true)
	if err != nil {
		return false, err
	}
	err = c.use(ctx, func(s *socket) error { return s.commit(s.newBatch(messages, 0)) })
	if err != nil && !refusesProbe(err) {
		return false, err
	}
	known := err == nil
	c.canDestroy.Store(&known)
	return known, nil
}

// readHeader reads a table without its contents, with a function that asks the kernel; nil if there is none.
func readHeader(ask func(query, func(reply) error) error, family Family, name string) (t *Table, err error) {
	err = ask(query{typ: unix.NFT_MSG_GETTABLE, family: family, table: name}, func(m reply) error {
		t, err = decodeTable(m.Data)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return t, err
}
