// Package proxy puts the parts together: it is the tracker's backend that compiles the
// model and commits it to the kernel.
package proxy

import (
	"context"
	"fmt"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"k8s.io/klog/v2"
)

// Backend writes the model to nftables. It implements tracker.Backend.
type Backend struct {
	conn     *nft.Conn
	compiler *compiler.Compiler
	onCommit func(nft.Stats)
}

// NewBackend returns a backend that commits through conn. onCommit, if not nil, is told of
// each transaction that the kernel carried out.
func NewBackend(conn *nft.Conn, config compiler.Config, onCommit func(nft.Stats)) (*Backend, error) {
	c, err := compiler.New(config)
	if err != nil {
		return nil, err
	}
	return &Backend{conn: conn, compiler: c, onCommit: onCommit}, nil
}

// Sync brings the kernel in line with the changes, in one transaction for both IP families.
// When the kernel refuses it, its tables are probably not what they were after the last
// commit (somebody flushed the ruleset), so Sync replaces them whole, in one transaction
// again. When that is refused too it returns the error, the kernel is as it was, and
// the next Sync has everything that this one had.
func (b *Backend) Sync(ctx context.Context, changes *model.Changes) error {
	logger := klog.FromContext(ctx)
	for _, c := range b.compiler.Apply(changes) {
		logger.Info("Several Services claim the same address; only one gets it", "address", c.Frontend, "owner", c.Owner.ServicePortName(), "others", names(c.Others))
	}
	err := b.commit()
	if err == nil {
		return nil
	}
	logger.Info("Replacing the tables, because the kernel refused a change to them", "reason", err.Error())
	b.compiler.Invalidate()
	if err := b.commit(); err != nil {
		return fmt.Errorf("program the rules: %w", err)
	}
	return nil
}

func (b *Backend) commit() error {
	tx := b.compiler.Transaction()
	if tx.Empty() {
		return nil
	}
	stats, err := b.conn.Commit(tx)
	if err != nil {
		return err
	}
	b.compiler.Committed()
	if b.onCommit != nil {
		b.onCommit(stats)
	}
	return nil
}

// Tables returns the rulesets as they are wanted now. They are valid until the next Sync.
func (b *Backend) Tables() []*nft.Table { return b.compiler.Tables() }

// Cleanup removes the tables of both families in one transaction, whoever made them; tables
// that are not there are no error.
func Cleanup(conn *nft.Conn) error {
	tx := nft.Remove(nft.FamilyIP, compiler.TableName)
	tx.Append(nft.Remove(nft.FamilyIP6, compiler.TableName))
	_, err := conn.Commit(tx)
	return err
}

func names(ids []model.PortID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.ServicePortName())
	}
	return out
}
