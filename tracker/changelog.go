package tracker

// changeLog has all entries in the order in which they changed last. So whoever has seen everything up to a revision finds
// what is new from the end, and nothing has to be kept for those who are slow.
type changeLog struct {
	// revision grows with each change.
	revision uint64
	// horizon is the first revision after which every deletion is remembered.
	horizon uint64
	// oldest and newest are the ends of the list.
	oldest, newest *entry
	// graves is the entries that are empty, or were, those first that became so first.
	graves []grave
	// size is one more than the largest index; free is the indexes below it that nobody has.
	size uint32
	free []uint32
}

// grave is an entry that is empty, or was, and the name that it had.
type grave struct {
	*entry
	name objectName
}

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
	if l.newest != e {
		l.unlink(e)
		l.append(e)
	}
}

func (l *changeLog) append(e *entry) {
	e.prev, e.next = l.newest, nil
	if l.newest != nil {
		l.newest.next = e
	} else {
		l.oldest = e
	}
	l.newest = e
}

func (l *changeLog) unlink(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.oldest = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.newest = e.prev
	}
}

// bury notes that e became empty.
func (l *changeLog) bury(name objectName, e *entry) {
	if !e.buried {
		e.buried = true
		l.graves = append(l.graves, grave{e, name})
	}
}

// remove takes e out for good. Nobody may have handed out anything of it.
func (l *changeLog) remove(e *entry) {
	l.unlink(e)
	l.free = append(l.free, e.index)
	l.forgetBefore(e.changed)
}

// forgetBefore notes that deletions up to a revision are not remembered any more.
func (l *changeLog) forgetBefore(revision uint64) { l.horizon = max(l.horizon, revision) }

// since calls look for each entry that changed after a revision, the last one first.
func (l *changeLog) since(revision uint64, look func(*entry)) {
	for e := l.newest; e != nil && e.changed > revision; e = e.prev {
		look(e)
	}
}

// forgetGraves removes entries that are empty, the oldest ones first: those that all views have seen when more than keep are
// left, and when too many are left all of them. It returns the last revision that a view must have seen to know of all those.
func (t *Tracker) forgetGraves() {
	l := &t.changes
	keep := t.options.History
	if len(l.graves) <= keep {
		return
	}
	seen := l.revision
	for v := range t.views {
		seen = min(seen, v.seen)
	}
	for len(l.graves) > keep {
		e := l.graves[0]
		if !e.empty() {
			e.buried, l.graves = false, l.graves[1:]
			continue
		}
		if e.changed > seen {
			if len(l.graves) <= keep+maxGraves {
				return
			}
			t.loseSight(e.changed)
		}
		l.graves = l.graves[1:]
		l.remove(e.entry)
		delete(t.entries, e.name)
	}
	if len(l.graves) == 0 {
		l.graves = nil
	}
}

// maxGraves is how many deleted Services are kept for views that have not been asked for changes for long. With more,
// such a view compares everything once.
const maxGraves = 10_000

// loseSight makes the views that have not seen a revision remember by themselves what they have handed out.
func (t *Tracker) loseSight(revision uint64) {
	for v := range t.views {
		if v.seen < revision {
			v.takeOver()
		}
	}
}
