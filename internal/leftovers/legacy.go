package leftovers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/nft"
)

// legacyFamily describes the kernel's interface to the tables of iptables-legacy of one family. The numbers are those
// of linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h on a 64-bit machine.
type legacyFamily struct {
	family nft.Family
	// names is a file with the names of the tables in use in this network namespace. The kernel would make
	// another table if it were asked for it.
	names         string
	domain, level int
	offsets       entryLayout
}

var legacyFamilies = []legacyFamily{
	{family: nft.FamilyIP, names: "/proc/thread-self/net/ip_tables_names", domain: unix.AF_INET, level: unix.IPPROTO_IP, offsets: entryLayout{88, 90, 112}},
	{family: nft.FamilyIP6, names: "/proc/thread-self/net/ip6_tables_names", domain: unix.AF_INET6, level: unix.IPPROTO_IPV6, offsets: entryLayout{140, 142, 168}},
}

// Options of getsockopt and of setsockopt, the same for both families.
const (
	getInfo     = 64
	getEntries  = 65
	setReplace  = 64
	addCounters = 65
)

// maxLegacyTable limits the size of a table in bytes. The rules of 50,000 Services take less than half as much.
const maxLegacyTable = 512 << 20

// familyOf returns the interface to the tables of a family.
func familyOf(family nft.Family) legacyFamily {
	return legacyFamilies[slices.IndexFunc(legacyFamilies, func(f legacyFamily) bool { return f.family == family })]
}

// findLegacy lists kube-proxy's chains in the tables of iptables-legacy that are in use.
func findLegacy(context.Context) (found []foundTable, err error) {
	for _, f := range legacyFamilies {
		inUse, err := f.tables()
		if err != nil {
			return found, err
		}
		for _, name := range tableNames {
			if !slices.Contains(inUse, name) {
				continue
			}
			t, err := f.read(name)
			if err != nil {
				return found, err
			}
			if of := newFoundTable(table{f.family, name}, t.chains); len(of.chains)+len(of.shared) > 0 {
				found = append(found, of)
			}
		}
	}
	return found, nil
}

// retry calls do up to a hundred times while other programs change the table (EAGAIN).
func retry[T any](do func() (T, error)) (out T, err error) {
	for range 100 {
		if out, err = do(); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return out, err
}

// tables returns the names of the tables in use.
func (f legacyFamily) tables() ([]string, error) {
	text, err := os.ReadFile(f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no iptables-legacy, or no IPv6
	}
	return slices.Sorted(slices.Values(strings.Fields(string(text)))), err
}

// socket calls use with a socket of the family.
func (f legacyFamily) socket(use func(socket int) error) error {
	socket, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(socket)
	return use(socket)
}

// read returns a table.
func (f legacyFamily) read(name string) (t *legacyTable, err error) {
	err = f.socket(func(socket int) (err error) {
		t, err = retry(func() (*legacyTable, error) { return f.readOnce(socket, name) })
		return err
	})
	if err == nil {
		err = t.parse()
	}
	if err != nil {
		return nil, fmt.Errorf("read table %s of %s: %w", name, f.family, err)
	}
	return t, nil
}

// readOnce returns a table without its chains. It returns EAGAIN if the table changes between the two calls.
func (f legacyFamily) readOnce(socket int, name string) (*legacyTable, error) {
	t := &legacyTable{family: f, name: name}
	copy(t.info[:], name)
	if err := getsockopt(socket, f.level, getInfo, t.info[:]); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(t.info[infoSizeAt:])
	if size > maxLegacyTable {
		return nil, fmt.Errorf("it has %d bytes, more than %d", size, maxLegacyTable)
	}
	// struct ipt_get_entries: name, size, entries, which are aligned to eight bytes. They stand where struct ipt_replace
	// has them.
	t.replacement = make([]byte, replaceSize+int(size))
	request := t.replacement[replaceSize-tableNameSize-8:]
	copy(request, name)
	binary.NativeEndian.PutUint32(request[tableNameSize:], size)
	if err := getsockopt(socket, f.level, getEntries, request); err != nil {
		return nil, err
	}
	t.entries = t.replacement[replaceSize:]
	return t, nil
}

func getsockopt(socket, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setsockopt is replaced by tests.
var setsockopt = func(socket, level, option int, value []byte) error {
	return unix.SetsockoptString(socket, level, option, unsafe.String(&value[0], len(value)))
}

// A table of iptables-legacy is a list of entries. An entry is a rule: a head, matches, and a target. The base chains come
// first. A user-defined chain begins with an entry whose target is called ERROR and whose data is the chain's name. The
// table's last entry has the target ERROR too, with the name ERROR, which a user-defined chain can have as well. The standard
// target has an empty name and a verdict: a number below zero ends the chain, any other number is the offset of the entry
// where the packet goes on.
const (
	chainTarget = "ERROR"
	// In struct xt_entry_target the name is behind the length, and the data behind name and revision.
	targetNameAt, targetNameSize, targetDataAt = 2, 29, 32
)

// In struct ipt_getinfo: name, valid hooks, first entry and last of five hooks, number of entries, size.
const (
	tableNameSize = 32
	hooks         = 5
	infoHooksAt   = tableNameSize + 4
	infoCountAt   = infoHooksAt + 2*4*hooks
	infoSizeAt    = infoCountAt + 4
	infoSize      = infoSizeAt + 4
)

// entryLayout has the offsets of the two lengths in an entry (struct ipt_entry, struct ip6t_entry), and its size.
type entryLayout struct{ targetOffset, nextOffset, size int }

// legacyTable is a table as the kernel has it.
type legacyTable struct {
	family legacyFamily
	name   string
	info   [infoSize]byte
	// replacement has room for the head of struct ipt_replace, and then the entries.
	replacement, entries []byte
	rules                []legacyRule
	// chains are the names of the user-defined chains.
	chains []string
}

// legacyRule is an entry.
type legacyRule struct {
	// at, end and verdict are offsets: of the entry, of the next entry, and of the verdict of a standard target; zero for any
	// other target.
	at, end, verdict int
	// chain is the user-defined chain that has the rule; empty for a base chain. to is the chain to which the rule jumps.
	chain, to string
	// begins says that the entry is no rule: a user-defined chain begins with it, or the table ends with it.
	begins bool
}

// parse splits the entries into rules and chains.
func (t *legacyTable) parse() error {
	layout := t.family.offsets
	starts := map[int]string{}
	chain := ""
	for at := 0; at < len(t.entries); {
		entry := t.entries[at:]
		if len(entry) < layout.size {
			return fmt.Errorf("entry at %d of %d is cut off", at, len(t.entries))
		}
		target, next := int(binary.NativeEndian.Uint16(entry[layout.targetOffset:])), int(binary.NativeEndian.Uint16(entry[layout.nextOffset:]))
		if target < layout.size || next < target+targetDataAt || next > len(entry) {
			return fmt.Errorf("entry at %d of %d has its target at %d and the next entry at %d", at, len(t.entries), target, next)
		}
		r := legacyRule{at: at, end: at + next}
		switch data := entry[target+targetDataAt : next]; text(entry[target+targetNameAt:][:targetNameSize]) {
		case chainTarget:
			r.begins, chain = true, ""
			if r.end < len(t.entries) {
				chain = text(data)
				starts[r.end] = chain
				t.chains = append(t.chains, chain)
			}
		case "":
			if len(data) < 4 {
				return fmt.Errorf("entry at %d of %d has no verdict", at, len(t.entries))
			}
			r.verdict = at + target + targetDataAt
		}
		r.chain = chain
		t.rules = append(t.rules, r)
		at = r.end
	}
	return t.findJumps(starts)
}

// findJumps sets the destinations of rules. starts has the names of chains by the offsets of their first rules.
func (t *legacyTable) findJumps(starts map[int]string) error {
	for i := range t.rules {
		r := &t.rules[i]
		to, jumps := t.goesOn(*r)
		if !jumps || to == r.end {
			continue // without a target, a rule goes on to the next
		}
		if r.to = starts[to]; r.to == "" {
			return fmt.Errorf("entry at %d of %d leads to %d, where no chain begins", r.at, len(t.entries), to)
		}
	}
	return nil
}

// goesOn returns the offset of the entry where a packet goes on after a rule with a standard target. jumps is false if the
// rule has another target, or a verdict that ends the chain.
func (t *legacyTable) goesOn(r legacyRule) (to int, jumps bool) {
	if r.verdict == 0 {
		return 0, false
	}
	to = int(int32(binary.NativeEndian.Uint32(t.entries[r.verdict:])))
	return to, to >= 0
}

// text returns the bytes before the first NUL.
func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}
