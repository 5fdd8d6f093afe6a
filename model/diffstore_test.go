package model

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// naive is a DiffStore as one would write it without a thought of cost.
type naive struct {
	wanted, applied map[string]int
	// unknown is keys of which nobody knows what the dataplane has; applied is then what it had.
	unknown map[string]bool
}

// pair is a key and its value.
type pair struct {
	Key   string
	Value int
}

func (n *naive) updated() (out []pair) {
	for _, key := range slices.Sorted(maps.Keys(n.wanted)) {
		if had, ok := n.applied[key]; !ok || n.unknown[key] || had != n.wanted[key] {
			out = append(out, pair{key, n.wanted[key]})
		}
	}
	return out
}

func (n *naive) deleted() (out []pair) {
	for _, key := range slices.Sorted(maps.Keys(n.applied)) {
		if _, ok := n.wanted[key]; !ok {
			out = append(out, pair{key, n.applied[key]})
		}
	}
	return out
}

func (n *naive) commitOne(key string) {
	delete(n.unknown, key)
	if value, ok := n.wanted[key]; ok {
		n.applied[key] = value
	} else {
		delete(n.applied, key)
	}
}

func (n *naive) invalidateOne(key string) {
	if _, ok := n.applied[key]; !ok {
		n.applied[key] = 0
	}
	n.unknown[key] = true
}

func pairs(sequence func(func(string, int) bool)) (out []pair) {
	for key, value := range sequence {
		out = append(out, pair{key, value})
	}
	return out
}

func testStoreIsTheNaiveOne(t *testing.T) {
	keys := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
	values := rapid.IntRange(0, 2)
	rapid.Check(t, func(t *rapid.T) {
		s := NewDiffStore[string, int]()
		n := &naive{wanted: map[string]int{}, applied: map[string]int{}, unknown: map[string]bool{}}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(*rapid.T) {
				s.Begin()
				clear(n.wanted)
			},
			"set": func(t *rapid.T) {
				key, value := keys.Draw(t, "key"), values.Draw(t, "value")
				s.Set(key, value)
				n.wanted[key] = value
			},
			"the same again": func(*rapid.T) {
				s.Begin()
				for key, value := range n.wanted {
					s.Set(key, value)
				}
			},
			"delete": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				s.Delete(key)
				delete(n.wanted, key)
			},
			"commit": func(*rapid.T) {
				s.Commit()
				n.applied = maps.Clone(n.wanted)
				clear(n.unknown)
			},
			"adopt": func(t *rapid.T) {
				key, value := keys.Draw(t, "key"), values.Draw(t, "value")
				s.Adopt(key, value)
				n.applied[key] = value
				delete(n.unknown, key)
			},
			"invalidate": func(*rapid.T) {
				s.Invalidate()
				for key := range n.applied {
					n.unknown[key] = true
				}
			},
			"apply": func(t *rapid.T) {
				refused := keys.Draw(t, "refused")
				before := n.deleted()
				wanted := append(before, n.updated()...)
				var got []pair
				failures := 0
				apply := func(key string, value int) error {
					got = append(got, pair{key, value})
					if key == refused {
						failures++
						return errors.New(key)
					}
					return nil
				}
				err := s.Apply(apply, apply)
				if diff := cmp.Diff(wanted, got); diff != "" {
					t.Fatalf("Apply (-want +got):\n%s", diff)
				}
				if (err != nil) != (failures > 0) {
					t.Fatalf("Apply: %v after %d failures", err, failures)
				}
				for _, p := range got {
					if p.Key == refused {
						n.invalidateOne(p.Key)
					} else {
						n.commitOne(p.Key)
					}
				}
			},
			"get": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				got, ok := s.Get(key)
				if want, wantOK := n.wanted[key]; got != want || ok != wantOK {
					t.Fatalf("Get(%s) = %d, %t; want %d, %t", key, got, ok, want, wantOK)
				}
			},
			// It is an action and not the check after each of the others, since reading ends a full state.
			"read": func(t *rapid.T) { compare(t, s, n) },
		})
		compare(t, s, n)
		s.Commit()
		if s.Changed() || len(s.entries) != len(n.wanted) {
			t.Fatalf("after Commit %d entries are left for %d keys, changed: %t", len(s.entries), len(n.wanted), s.Changed())
		}
	})
}

func compare(t *rapid.T, s *DiffStore[string, int], n *naive) {
	if diff := cmp.Diff(n.deleted(), pairs(s.Deleted())); diff != "" {
		t.Fatalf("Deleted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(n.updated(), pairs(s.Updated())); diff != "" {
		t.Fatalf("Updated (-want +got):\n%s", diff)
	}
	if want := len(n.deleted())+len(n.updated()) > 0; s.Changed() != want {
		t.Fatalf("Changed is %t, want %t", s.Changed(), want)
	}
}

func TestDiffStore(t *testing.T) {
	t.Run("a failure loses nothing", func(t *testing.T) {
		s := NewDiffStore[string, int]()
		s.Set("a", 1)
		s.Set("b", 1)
		s.Commit()
		s.Begin()
		s.Set("b", 2) // a goes, b changes; applying fails, so there is no Commit
		s.Begin()
		s.Set("b", 2)
		s.Set("c", 3)
		if diff := cmp.Diff([]pair{{"a", 1}}, pairs(s.Deleted())); diff != "" {
			t.Errorf("Deleted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]pair{{"b", 2}, {"c", 3}}, pairs(s.Updated())); diff != "" {
			t.Errorf("Updated (-want +got):\n%s", diff)
		}
	})
	t.Run("what was half applied is a difference after the way back", func(t *testing.T) {
		s := NewDiffStore[string, int]()
		s.Set("a", 1)
		s.Commit()
		s.Set("a", 2)
		failed := func(string, int) error { return errors.New("2 or 1 or something between") }
		if err := s.Apply(failed, failed); err == nil {
			t.Error("Apply hides an error")
		}
		s.Set("a", 1)
		if diff := cmp.Diff([]pair{{"a", 1}}, pairs(s.Updated())); diff != "" {
			t.Errorf("Updated (-want +got):\n%s", diff)
		}
	})
	t.Run("loops may end early", func(t *testing.T) {
		s := NewDiffStore[string, int]()
		s.Set("a", 1)
		s.Set("b", 2)
		for range s.Updated() {
			break
		}
		if diff := cmp.Diff([]pair{{"a", 1}, {"b", 2}}, pairs(s.Updated())); diff != "" {
			t.Errorf("Updated (-want +got):\n%s", diff)
		}
	})
	t.Run("keys that come and go unapplied leave nothing behind", func(t *testing.T) {
		s := NewDiffStore[int, int]()
		for i := range 1000 {
			s.Set(i, i)
			s.Delete(i)
		}
		if len(s.entries)+len(s.changed) > 0 || s.Changed() {
			t.Errorf("%d entries, %d of them changed", len(s.entries), len(s.changed))
		}
	})
	t.Run("a full state that is as before allocates nothing", func(t *testing.T) {
		s := NewDiffStore[int, int]()
		write := func() {
			s.Begin()
			for i := range 1000 {
				s.Set(i, i)
			}
			if s.Changed() {
				s.Commit()
			}
		}
		write()
		if n := testing.AllocsPerRun(10, write); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
	t.Run("does what a naive one does", testStoreIsTheNaiveOne)
}

func TestPortStore(t *testing.T) {
	t.Run("does what changes do", testPortStoreDoesWhatChangesDo)
}

// A backend that applies the differences has the same as one that applies each of the Changes, whether
// these are increments or full.
func testPortStoreDoesWhatChangesDo(t *testing.T) {
	ids := []PortID{{Service: "a"}, {Service: "b"}, {Service: "c"}, {Service: "d"}}
	rapid.Check(t, func(t *rapid.T) {
		store := NewPortStore()
		want, dataplane := map[PortID]uint16{}, map[PortID]uint16{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			changes := &Changes{Full: rapid.IntRange(0, 4).Draw(t, "full") == 0, Ports: map[PortID]*ServicePort{}}
			if changes.Full {
				clear(want)
			}
			for _, id := range ids {
				switch rapid.IntRange(0, 2).Draw(t, "what becomes of "+id.Service) {
				case 0:
					port := uint16(rapid.IntRange(1, 2).Draw(t, "port"))
					changes.Ports[id], want[id] = &ServicePort{ID: id, Port: port}, port
				case 1:
					if !changes.Full {
						changes.Ports[id] = nil
					}
					delete(want, id)
				}
			}
			store.Write(changes)
			if rapid.Bool().Draw(t, "the dataplane refuses") {
				continue
			}
			for id, port := range store.Deleted() {
				if dataplane[id] != port.Port {
					t.Fatalf("%s is deleted with port %d, the dataplane has %d", id, port.Port, dataplane[id])
				}
				delete(dataplane, id)
			}
			for id, port := range store.Updated() {
				if dataplane[id] == port.Port {
					t.Fatalf("%s is updated, the dataplane has port %d already", id, port.Port)
				}
				dataplane[id] = port.Port
			}
			store.Commit()
			if diff := cmp.Diff(want, maps.Clone(dataplane)); diff != "" {
				t.Fatalf("the dataplane has (-want +got):\n%s", diff)
			}
		}
	})
}
