package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/model"
	"golang.org/x/sys/unix"
)

// deleteAtOnce is the number of deletions in one datagram. All refusals must fit into the socket's buffer.
const deleteAtOnce = 100

// deletion deletes entries on a socket of its own while a listing goes on, so that they never pile up.
type deletion struct {
	conn   *Conn
	ctx    context.Context
	family model.Family

	// s is nil before the first deletion.
	s     *socket
	names [][]byte

	deleted, refused int
	// refusal is the first of the kernel's refusals. err ends all deletions.
	refusal, err error
}

// add deletes the named entry, now or with the next ones. It reports whether deletions still work.
func (d *deletion) add(name []byte) bool {
	d.names = append(d.names, name)
	if len(d.names) == deleteAtOnce {
		d.flush()
	}
	return d.err == nil
}

// finish deletes the remaining entries, and returns an error if any deletion failed.
func (d *deletion) finish() error {
	d.flush()
	if d.s != nil {
		d.s.nl.Close()
	}
	var refused, failed error
	if d.refusal != nil {
		refused = fmt.Errorf("conntrack: %d %s entries cannot be deleted: %w", d.refused, d.family, d.refusal)
	}
	if d.err != nil {
		failed = fmt.Errorf("conntrack: delete %s entries: %w", d.family, d.err)
	}
	return errors.Join(refused, failed)
}

func (d *deletion) flush() {
	if len(d.names) > 0 && d.err == nil {
		d.err = d.delete(d.names)
	}
	d.names = nil
}

// delete deletes the named entries. It returns an error if the kernel did not answer for all of them.
func (d *deletion) delete(names [][]byte) (err error) {
	if d.s == nil {
		if d.s, err = d.conn.open(0); err != nil {
			return err
		}
	}
	defer context.AfterFunc(d.ctx, func() { d.s.nl.Close() })()
	sent, err := d.s.nl.SendMessages(deleteRequests(d.family, names))
	if err != nil {
		return err
	}
	kept, err := d.readAnswers(sent[len(sent)-1].Header.Sequence)
	d.deleted += len(names) - kept
	return err
}

// readAnswers reads the answers up to the last request's, and returns the number of entries that were not deleted. A
// missing entry is no refusal.
func (d *deletion) readAnswers(last uint32) (kept int, err error) {
	for {
		if err := d.s.expect(); err != nil {
			return kept, err
		}
		answers, err := d.s.nl.Receive()
		var answer *netlink.OpError
		switch {
		case errors.As(err, &answer) && answer.Sequence != 0:
			kept++
			if !errors.Is(answer, unix.ENOENT) {
				d.refused++
				d.refusal = cmp.Or(d.refusal, error(answer))
			}
			if answer.Sequence == last {
				return kept, nil
			}
		case err != nil:
			return kept, err
		}
		for _, m := range answers {
			if m.Header.Sequence == last {
				return kept, nil
			}
		}
	}
}
