package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Recording holds the netlink messages that describe one table, as a kernel listed it or would be told to add it. It
// outlasts the kernel: Table reads it anywhere on a machine with the same byte order. Statements that this version of the
// package reads as Unknown stay in the recording for later versions.
type Recording []byte

// Record returns the messages that would add the table, with all elements of its sets.
func (t *Table) Record() (Recording, error) {
	tx := Diff(nil, t)
	messages, err := tx.encode()
	if err != nil {
		return nil, err
	}
	var r Recording
	for i := range messages {
		r.add(uint16(messages[i].Header.Type), messages[i].Data)
	}
	return r, nil
}

func (r *Recording) add(typ uint16, data []byte) {
	b := binary.NativeEndian.AppendUint32(*r, uint32(unix.NLMSG_HDRLEN+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, unix.NLMSG_HDRLEN-6)...) // flags, sequence and port tell nothing
	b = append(b, data...)
	*r = append(b, make([]byte, netlinkattr.Padded(len(data))-len(data))...)
}

var (
	errCutOff    = errors.New("nft: the recording is cut off")
	errByteOrder = errors.New("nft: the recording is of a machine with another byte order")
)

func (r Recording) each(f func(reply) error) error {
	for len(r) > 0 {
		if len(r) < unix.NLMSG_HDRLEN {
			return errCutOff
		}
		length := binary.NativeEndian.Uint32(r)
		switch swapped := uint32(r[0])<<24 | uint32(r[1])<<16 | uint32(r[2])<<8 | uint32(r[3]); {
		case length >= unix.NLMSG_HDRLEN && uint64(length) <= uint64(len(r)):
		case length > math.MaxUint16 && min(swapped, length) <= uint32(len(r)):
			return errByteOrder
		default:
			return errCutOff
		}
		header := syscall.NlMsghdr{Len: length, Type: binary.NativeEndian.Uint16(r[4:])}
		if err := f(reply{header, r[unix.NLMSG_HDRLEN:length]}); err != nil {
			return fmt.Errorf("nft: a recorded message: %w", err)
		}
		r = r[min(netlinkattr.Padded(int(length)), len(r)):]
	}
	return nil
}

// Table returns the recorded table, as ReadTable would.
func (r Recording) Table() (*Table, error) {
	t, err := r.decode(&decoder{})
	if err != nil {
		return nil, err
	}
	for _, s := range t.Sets {
		s.kernel.partial = false
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			for _, statement := range r.Statements {
				switch statement.(type) {
				case Update, Delete:
					if s := t.Set(setOf(statement)); s != nil && s.Dynamic && s.Size == 0 {
						s.Size = DefaultSize // as the kernel says once a rule changes the set
					}
				}
			}
		}
	}
	return t, nil
}

// Other returns the recorded table of another program, as ReadOthers would.
func (r Recording) Other() (*Table, error) { return r.decode(&decoder{other: true}) }

func (r Recording) decode(d *decoder) (*Table, error) {
	if err := r.each(d.take); err != nil {
		return nil, err
	}
	if d.table == nil {
		return nil, errors.New("nft: the recording has no table")
	}
	return d.finish(), nil
}

// Counts calls each for every element with a count, in no order: see Conn.Counts.
func (r Recording) Counts(each func(set string, key Data, n Count)) error {
	return r.each(func(m reply) error {
		if m.kind() != unix.NFT_MSG_NEWSETELEM {
			return nil
		}
		set := elementsOf(m.Data)
		return eachElement(m.Data, func(raw *rawElement) error {
			if raw.counter.is && !raw.catchAll() {
				each(set, pad(Data(raw.key)), raw.counter.Count)
			}
			return nil
		})
	})
}
