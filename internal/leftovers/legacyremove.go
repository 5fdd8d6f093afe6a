package leftovers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
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

// removeLegacy removes chains of iptables-legacy, from one table after the other.
func removeLegacy(ctx context.Context, found []foundTable, keepShared bool) (removal Removal, err error) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		return Removal{}, errors.New("this program must be a 64-bit one for that")
	}
	lock, err := lockTables(ctx)
	if err != nil {
		return Removal{}, err
	}
	defer lock.Close()
	for _, of := range found {
		doomed, err := retry(func() (map[string]bool, error) { return familyOf(of.family).remove(of.name, keepShared) })
		if err != nil {
			return removal, fmt.Errorf("table %s of %s: %w", of.name, of.family, err)
		}
		removal.addDoomed(of.table, doomed)
	}
	return removal, nil
}

// addDoomed notes what became of a table's chains.
func (r *Removal) addDoomed(t table, doomed map[string]bool) {
	for _, c := range slices.Sorted(maps.Keys(doomed)) {
		if doomed[c] {
			r.removeChains(t, []string{c})
		} else {
			r.keepChains(t, []string{c})
		}
	}
}

// LockFile is the lock of all programs that change tables of iptables-legacy, which they make when they first need it.
const LockFile = "/run/xtables.lock"

// lockFile is replaced by tests.
var lockFile = LockFile

// lockTime limits the wait for other programs. kube-proxy can have the lock for some seconds.
const lockTime = 30 * time.Second

// lockTables takes the lock until the file is closed. Without the lock, a concurrent change of another program could get lost.
// lockTables does not make the file: in a container, no other program would see a new file.
func lockTables(ctx context.Context) (*os.File, error) {
	f, err := os.Open(lockFile)
	if err != nil {
		return nil, fmt.Errorf("%w; in a container, mount the host's file there, and where no iptables program has made it, make it", err)
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

// remove removes kube-proxy's chains from a table. doomed says for each chain whether it is gone. The error is EAGAIN if the
// number of rules has changed meanwhile.
func (f legacyFamily) remove(name string, keepShared bool) (doomed map[string]bool, err error) {
	t, err := f.read(name)
	if err != nil {
		return nil, err
	}
	doomed = t.doomed(keepShared)
	before := len(t.rules)
	kept, err := t.remove(func(r *legacyRule) bool { return r.goes(doomed) })
	if err != nil || len(kept) == before {
		return doomed, err
	}
	return doomed, f.socket(func(socket int) error { return t.replace(socket, kept) })
}

// doomed returns for each chain of kube-proxy whether it goes. A chain stays if a rule of another program jumps to it. Then
// the chains to which it jumps stay too.
func (t *legacyTable) doomed(keepShared bool) map[string]bool {
	doomed := map[string]bool{}
	for _, c := range t.chains {
		if isRemovable(c) {
			doomed[c] = !keepShared || isProxyChain(c)
		}
	}
	for changed := true; changed; {
		changed = false
		keep := func(name string) {
			if doomed[name] {
				doomed[name], changed = false, true
			}
		}
		for _, r := range t.rules {
			if r.chain == "" && !isEntrance(r.to) || r.chain != "" && !doomed[r.chain] {
				keep(r.to)
			}
		}
		for i, name := range sharedChains { // one masquerades the packets that the other marks
			if goes, exists := doomed[name]; exists && !goes {
				keep(sharedChains[1-i])
			}
		}
	}
	return doomed
}

// goes reports whether a rule goes with the doomed chains.
func (r *legacyRule) goes(doomed map[string]bool) bool {
	return doomed[r.chain] || doomed[r.to] || r.chain == "" && isFixed(r.to)
}

// remove closes the gaps between the entries that stay, and returns their numbers.
func (t *legacyTable) remove(goes func(*legacyRule) bool) (kept []int, err error) {
	starts := make([]int, len(t.rules)) // of the rules, or of those after them that stay
	size := 0
	for i := range t.rules {
		starts[i] = size
		if r := &t.rules[i]; !goes(r) {
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
		if t.hasHook(i % hooks) {
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

// replace replaces the kernel's table by the entries. kept are the numbers that the entries had when they were read; they
// keep their counters. The error is EAGAIN if the number of rules has changed since.
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
