package tracker

// changeLog has all entries in the order in which they changed last. A view that has seen all changes up to a revision
// finds the new ones from the end, and no queue has to be kept for a slow one.
type changeLog struct {
	// revision grows with each change.
	revision uint64
	// horizon is the first revision after which every deletion is remembered.
	horizon uint64
	// ends is the entry before the oldest and after the newest, so that each entry has two neighbours. It never changed.
	ends entry
	// tombstones holds the entries that are empty, or were, in the order in which they became so.
	tombstones []tombstone
	// size is one more than the largest index. free holds the unused indexes below it.
	size uint32
	free []uint32
}

// tombstone is an entry that is empty, or was, with its name.
type tombstone struct {
	*entry
	name objectName
}

func (l *changeLog) init() { l.ends.prev, l.ends.next = &l.ends, &l.ends }

// next returns the revision of a new change.
func (l *changeLog) next() uint64 {
	l.revision++
	return l.revision
}

// add gives a new entry its place.
func (l *changeLog) add(e *entry) {
	if n := len(l.free); n > 0 {
		e.index, l.free = l.free[n-1], l.free[:n-1]
	} else {
		e.index = l.size
		l.size++
	}
	l.append(e)
}

// touch notes that e changed now.
func (l *changeLog) touch(e *entry) {
	e.changed = l.next()
	l.unlink(e)
	l.append(e)
}

func (l *changeLog) append(e *entry) {
	e.prev, e.next = l.ends.prev, &l.ends
	e.prev.next, l.ends.prev = e, e
}

func (l *changeLog) unlink(e *entry) { e.prev.next, e.next.prev = e.next, e.prev }

// addTombstone notes that e became empty.
func (l *changeLog) addTombstone(name objectName, e *entry) {
	if !e.hasTombstone {
		e.hasTombstone = true
		l.tombstones = append(l.tombstones, tombstone{e, name})
	}
}

// remove removes e. All views must have published its deletion, or be detached.
func (l *changeLog) remove(e *entry) {
	l.unlink(e)
	l.free = append(l.free, e.index)
	l.raiseHorizon(e.changed)
}

// raiseHorizon notes that deletions up to a revision are no longer remembered.
func (l *changeLog) raiseHorizon(revision uint64) { l.horizon = max(l.horizon, revision) }

// since calls look for each entry that changed after a revision, the last one first.
func (l *changeLog) since(revision uint64, look func(*entry)) {
	for e := l.ends.prev; e.changed > revision; e = e.prev {
		look(e)
	}
}

// deleteTombstones removes empty entries, the oldest ones first, until Options.History of them are left. It stops at
// one that a view has not seen yet, unless more than maxTombstones are left: then it detaches such views and continues.
func (t *Tracker) deleteTombstones() {
	l := &t.changes
	keep := t.options.History
	if len(l.tombstones) <= keep {
		return
	}
	seen := l.revision
	for v := range t.views {
		seen = min(seen, v.seen)
	}
	for len(l.tombstones) > keep {
		e := l.tombstones[0]
		if !e.empty() {
			e.hasTombstone, l.tombstones = false, l.tombstones[1:]
			continue
		}
		if e.changed > seen {
			if len(l.tombstones) <= keep+maxTombstones {
				return
			}
			t.detachViews(e.changed)
		}
		l.tombstones = l.tombstones[1:]
		l.remove(e.entry)
		delete(t.entries, e.name)
	}
	if len(l.tombstones) == 0 {
		l.tombstones = nil
	}
}

// maxTombstones is how many deleted Services are kept for views that have not taken changes for long. With more, such a
// view compares everything at its next Take.
const maxTombstones = 10_000

// detachViews detaches the views that have not seen a revision.
func (t *Tracker) detachViews(revision uint64) {
	for v := range t.views {
		if v.seen < revision {
			v.detach()
		}
	}
}
