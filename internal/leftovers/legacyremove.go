package leftovers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// In struct ipt_replace of a 64-bit machine: name, valid hooks, number of entries, size, first entry and last of five hooks,
// number of counters and their address.
const (
	replaceHooksAt    = tableNameSize + 12
	replaceCountersAt = replaceHooksAt + 2*4*hooks
	replaceSize       = replaceCountersAt + 4 + 8
	counterSize       = 16
)

// lockFile is the lock of all programs that change tables of iptables-legacy.
var lockFile = "/run/xtables.lock"

// lockTime limits the wait for other programs. kube-proxy can have the lock for some seconds.
const lockTime = 30 * time.Second

// removeLegacy removes chains of iptables-legacy, from one table after the other.
func removeLegacy(ctx context.Context, tables []table) (removal Removal, err error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return Removal{}, errors.New("this program must be a 64-bit one for that")
	}
	lock, err := lockTables(ctx)
	if err != nil {
		return Removal{}, err
	}
	defer lock.Close()
	for _, t := range tables {
		r, err := retry(func() (Removal, error) { return familyOf(t.family).remove(t.name) })
		if err != nil {
			return removal, fmt.Errorf("table %s of %s: %w", t.name, t.family, err)
		}
		removal.Removed, removal.Kept = append(removal.Removed, r.Removed...), append(removal.Kept, r.Kept...)
	}
	return removal, nil
}

// lockTables takes the lock until the file is closed. Without it, a change that another program makes at the same time could
// get lost.
func lockTables(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(lockFile, os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w; in a container, mount the host's file there", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || ctx.Err() != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", lockFile, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// remove removes kube-proxy's chains from a table. It returns EAGAIN if the table has another number of rules by then.
func (f legacyFamily) remove(name string) (removal Removal, err error) {
	t, err := f.read(name)
	if err != nil {
		return Removal{}, err
	}
	doomed := doomedChains(t.chains, t.jumps())
	removal.add(table{f.family, name}, t.chains, doomed)
	if len(removal.Removed) == 0 {
		return removal, nil
	}
	kept, err := t.remove(doomed)
	if err != nil {
		return Removal{}, err
	}
	return removal, f.socket(func(socket int) error { return t.replace(socket, kept) })
}

func (t *legacyTable) jumps() (jumps []jump) {
	for _, r := range t.rules {
		if r.to != "" {
			jumps = append(jumps, jump{r.chain, r.to})
		}
	}
	return jumps
}

// remove moves the entries that stay together. It returns the numbers of these.
func (t *legacyTable) remove(doomed map[string]bool) (kept []int, err error) {
	starts := make([]int, len(t.rules)) // of the rules, or of those after them that stay
	size := 0
	for i, r := range t.rules {
		starts[i] = size
		if !doomed[r.chain] && !doomed[r.to] {
			kept = append(kept, i)
			size += r.end - r.at
		}
	}
	move := func(field []byte) error {
		at := int(binary.NativeEndian.Uint32(field))
		i, found := slices.BinarySearchFunc(t.rules, at, func(r legacyRule, at int) int { return r.at - at })
		if !found {
			return fmt.Errorf("no entry begins at %d", at)
		}
		binary.NativeEndian.PutUint32(field, uint32(starts[i]))
		return nil
	}
	for i := range 2 * hooks { // the first and the last entries
		if t.info[tableNameSize]&(1<<(i%hooks)) != 0 {
			if err := move(t.info[infoHooksAt+4*i:]); err != nil {
				return nil, err
			}
		}
	}
	for _, i := range kept {
		r := t.rules[i]
		if _, jumps := t.goesOn(r); jumps {
			if err := move(t.entries[r.verdict:]); err != nil {
				return nil, err
			}
		}
		copy(t.entries[starts[i]:], t.entries[r.at:r.end])
	}
	t.entries = t.entries[:size]
	return kept, nil
}

// replace makes the kernel hold the entries instead of those that were read, of which kept stay with their counters. It
// returns EAGAIN if the table has another number of rules by now.
func (t *legacyTable) replace(socket int, kept []int) error {
	counters := make([]byte, counterSize*len(t.rules))
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(&counters[0])
	head := t.replacement[:replaceSize]
	clear(head)
	copy(head, t.info[:tableNameSize+4])
	binary.NativeEndian.PutUint32(head[tableNameSize+4:], uint32(len(kept)))
	binary.NativeEndian.PutUint32(head[tableNameSize+8:], uint32(len(t.entries)))
	copy(head[replaceHooksAt:], t.info[infoHooksAt:infoCountAt])
	binary.NativeEndian.PutUint32(head[replaceCountersAt:], uint32(len(t.rules)))
	binary.NativeEndian.PutUint64(head[replaceCountersAt+4:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	if err := setsockopt(socket, t.family.level, setReplace, t.replacement[:replaceSize+len(t.entries)]); err != nil {
		return err
	}
	// struct xt_counters_info: name, number, and the counters, aligned to eight bytes, which the kernel adds to those of the
	// new table.
	added := make([]byte, tableNameSize+8, tableNameSize+8+counterSize*len(kept))
	copy(added, t.name)
	binary.NativeEndian.PutUint32(added[tableNameSize:], uint32(len(kept)))
	for _, i := range kept {
		added = append(added, counters[counterSize*i:][:counterSize]...)
	}
	// If another program has changed the table since, these counters begin at zero.
	if err := setsockopt(socket, t.family.level, addCounters, added); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("add the counters: %w", err)
	}
	return nil
}
