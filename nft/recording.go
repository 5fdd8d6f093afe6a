package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"golang.org/x/sys/unix"
)

// Recording holds the netlink messages that describe one table, as a kernel listed it or would be told to add it. It
// outlasts the kernel: Table reads it anywhere on a machine with the same byte order. What this version of the package
// reads as Unknown stays in it for later ones.
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

// add appends a message.
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

// each calls f for each message.
func (r Recording) each(f func(typ uint16, data []byte) error) error {
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
		if err := f(binary.NativeEndian.Uint16(r[4:])&^(unix.NFNL_SUBSYS_NFTABLES<<8), r[unix.NLMSG_HDRLEN:length]); err != nil {
			return fmt.Errorf("nft: a recorded message: %w", err)
		}
		r = r[min(netlinkattr.Padded(int(length)), len(r)):]
	}
	return nil
}

// Table returns the recorded table, as ReadTable would.
func (r Recording) Table() (*Table, error) {
	l := recordedTable{sets: map[string]*Set{}}
	if err := r.each(l.take); err != nil {
		return nil, err
	}
	if l.table == nil {
		return nil, errors.New("nft: the recording has no table")
	}
	SortChains(l.table.Chains)
	add := l.table.ruleAdder()
	for _, rule := range l.rules {
		add(rule)
	}
	return l.table, nil
}

// recordedTable is a table whose messages are being read. Sets come before their elements.
type recordedTable struct {
	table *Table
	sets  map[string]*Set
	rules []decodedRule
}

func (l *recordedTable) take(typ uint16, data []byte) (err error) {
	if l.table == nil {
		if typ != unix.NFT_MSG_NEWTABLE {
			return errors.New("a part comes before its table")
		}
		l.table, err = decodeTable(data)
		return err
	}
	switch typ {
	case unix.NFT_MSG_NEWSET:
		_, s, err := decodeSet(data)
		if err != nil || l.sets[s.Name] != nil {
			return err
		}
		if s.Dynamic && s.Size == 0 {
			s.Size = DefaultSize // as the kernel says once the set is there
		}
		l.sets[s.Name] = s
		l.table.Sets = append(l.table.Sets, s)
	case unix.NFT_MSG_NEWSETELEM:
		return l.takeElements(data)
	case unix.NFT_MSG_NEWOBJ:
		_, o, err := decodeObject(data)
		l.table.Kernel.Objects = append(l.table.Kernel.Objects, o)
		return err
	case netlinkattr.MsgNewFlowtable:
		_, o, err := decodeFlowtable(data)
		l.table.Kernel.Objects = append(l.table.Kernel.Objects, o)
		return err
	case unix.NFT_MSG_NEWCHAIN:
		_, c, err := decodeChain(data)
		l.table.Chains = append(l.table.Chains, c)
		return err
	case unix.NFT_MSG_NEWRULE:
		rule, err := decodeRule(data)
		l.rules = append(l.rules, rule)
		return err
	}
	return nil
}

func (l *recordedTable) takeElements(data []byte) error {
	s := l.sets[elementsOf(data)]
	if s == nil {
		return errors.New("elements come before their set")
	}
	return eachElement(data, func(raw *rawElement) error {
		e := raw.element()
		if e.Key != CatchAll && len(e.Key) != s.Key.Len() || len(e.Value) != s.Data.Len() {
			return fmt.Errorf("an element of set %s is not %s", s.Name, s.typeText())
		}
		s.putRead(e, raw.unknownIn(s))
		return nil
	})
}

// elementsOf returns the name of the set that a message with elements is about.
func elementsOf(data []byte) (set string) {
	_ = decodeAttributes(data, func(typ uint16, b []byte) error {
		if typ == unix.NFTA_SET_ELEM_LIST_SET {
			set = netlinkattr.Text(b)
		}
		return nil
	})
	return set
}

// Counts calls each for every element with a count, in no order: see Conn.Counts.
func (r Recording) Counts(each func(set string, key Data, n Count)) error {
	return r.each(func(typ uint16, data []byte) error {
		if typ != unix.NFT_MSG_NEWSETELEM {
			return nil
		}
		set := elementsOf(data)
		return eachElement(data, func(raw *rawElement) error {
			if raw.counter.is && !raw.catchAll() {
				each(set, pad(Data(raw.key)), raw.counter.Count)
			}
			return nil
		})
	})
}

// isAbout reports whether a message is about a table. Kernels that do not filter listings send those of others too.
func isAbout(data []byte, table string) bool {
	is := false
	_ = decodeAttributes(data, func(typ uint16, b []byte) error {
		is = is || typ == attrTable && string(netlinkattr.TextBytes(b)) == table
		return nil
	})
	return is
}
