package model_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nftproxy/nftproxy/model"
)

// lister is a source of one resource, whose objects serve what their names say before a dash.
type lister struct {
	guard    model.ListGuard
	mu       sync.Mutex
	losses   *model.Losses[string]
	known    map[string]string
	believed int
}

func newLister(options model.LossesOptions[string]) *lister {
	l := &lister{known: map[string]string{}}
	options.Resource, options.Lock = "services", &l.mu
	options.Drop = func(name string) { delete(l.known, name) }
	options.Believed = func() { l.believed++ }
	l.losses = model.NewLosses(&l.guard, options)
	return l
}

// serving returns what an object serves: nothing for "none-1", "web" for "web-1", default/kubernetes for "kubernetes".
func serving(name string) string {
	served, _, _ := strings.Cut(name, "-")
	switch served {
	case "none":
		return ""
	case "kubernetes":
		return model.Kubernetes
	}
	return served
}

func (l *lister) list(names ...string) { l.listOf(false, names...) }

func (l *lister) listOf(otherStorage bool, names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had, has := maps.Clone(l.known), map[string]string{}
	for _, name := range names {
		has[name] = serving(name)
	}
	maps.Copy(l.known, has)
	l.losses.List(had, has, otherStorage)
}

func (l *lister) set(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[name] = serving(name)
	l.losses.Set(name, serving(name))
}

func (l *lister) delete(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, name)
	l.losses.Delete(name)
}

func (l *lister) has() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.known))
}

// expect compares the objects with want, and whether some are held.
func (l *lister) expect(t *testing.T, step string, held bool, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, l.has()); diff != "" && len(want)+len(l.has()) > 0 {
		t.Errorf("%s (-want +got):\n%s", step, diff)
	}
	if got := l.guard.Held(); (len(got) > 0) != held {
		t.Errorf("%s: held is %q, want some: %v", step, got, held)
	}
}

// numbered returns n names, each of which serves something else.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("svc", i))
	}
	return names
}

func TestLosses(t *testing.T) {
	t.Run("are believed of a plausible list", testLossesOfAPlausibleList)
	t.Run("of most are held for ten minutes", testLossesOfMost)
	t.Run("of all are held until there are others", testLossesOfAll)
	t.Run("of another storage are held", testLossesOfAnotherStorage)
	t.Run("that come back end the hold", testLossesThatComeBack)
	t.Run("that are replaced go at once", testLossesThatAreReplaced)
	t.Run("are believed when somebody says so", testLossesAreBelievedOnDemand)
	t.Run("of a resource that may be empty are held for ten minutes", testLossesOfWhatMayBeEmpty)
	t.Run("follow the source whatever happens", rapid.MakeCheck(testLossesFollowTheSource))
	t.Run("are told with their number and their end", testLossesAreTold)
}

// inTime runs a test whose clock does not wait.
func inTime(t *testing.T, test func(t *testing.T)) { synctest.Test(t, test) }

func testLossesOfAPlausibleList(t *testing.T) {
	for _, tc := range []struct {
		name      string
		had, has  []string
		plausible bool
	}{
		{"a deletion", []string{"a", "b"}, []string{"a"}, true},
		{"all but one, of few", numbered(19), numbered(1), true},
		{"four in five, of many", numbered(20), numbered(4), true},
		{"more than four in five, of many", numbered(20), numbered(3), false},
		{"default/kubernetes is none of twenty", append(numbered(19), "kubernetes"), numbered(1), true},
		{"all", []string{"a", "b"}, nil, false},
		{"all, and there are others", []string{"a", "b"}, []string{"c"}, false},
		{"all but default/kubernetes", []string{"a", "kubernetes"}, []string{"kubernetes"}, false},
		{"nothing but default/kubernetes", []string{"kubernetes"}, nil, false},
		{"default/kubernetes", []string{"a", "kubernetes"}, []string{"a"}, true},
		{"objects that serve nothing", []string{"none-1", "none-2"}, nil, true},
		{"all, replaced by others that serve the same", []string{"a-1", "b-1"}, []string{"a-2", "b-2"}, true},
	} {
		l := newLister(model.LossesOptions[string]{})
		l.list(tc.had...)
		l.expect(t, tc.name+": before", false, tc.had...)
		l.list(tc.has...)
		want := slices.Clone(tc.has)
		if !tc.plausible {
			want = slices.Compact(slices.Sorted(slices.Values(append(want, tc.had...))))
		}
		l.expect(t, tc.name, !tc.plausible, want...)
	}
}

func testLossesOfMost(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l, all := newLister(model.LossesOptions[string]{}), numbered(100)
		l.list(all...)
		l.list("svc0", "new")
		both := append(slices.Clone(all), "new")
		newest := append(slices.Clone(both), "newer")
		l.expect(t, "what is new is there at once", true, both...)
		time.Sleep(model.DefaultPatience / 2)
		l.list(append(all[:50:50], "new")...)
		l.expect(t, "a second list, which alone would be plausible", true, both...)
		l.list("svc0", "newer")
		l.expect(t, "a third one, which lacks more", true, newest...)
		time.Sleep(model.DefaultPatience/2 - time.Second)
		l.expect(t, "before the end of the first patience", true, newest...)
		time.Sleep(time.Second)
		synctest.Wait()
		l.expect(t, "after it", false, "svc0", "newer")
		l.list("svc0")
		l.expect(t, "a plausible list later", false, "svc0")
	})
}

func testLossesOfAll(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLister(model.LossesOptions[string]{})
		l.list("a", "b", "kubernetes")
		l.list()
		l.expect(t, "an empty list", true, "a", "b", "kubernetes")
		time.Sleep(24 * time.Hour)
		l.set("kubernetes")
		l.set("none-1")
		l.list("kubernetes")
		time.Sleep(24 * time.Hour)
		l.expect(t, "a day with default/kubernetes", true, "a", "b", "kubernetes")
		l.set("c")
		time.Sleep(model.DefaultPatience - time.Second)
		l.list("kubernetes")
		time.Sleep(24 * time.Hour)
		l.expect(t, "the other Service is gone again", true, "a", "b", "c", "kubernetes")
		l.set("c")
		l.set("d")
		time.Sleep(model.DefaultPatience - time.Second)
		l.set("e")
		l.expect(t, "the first of a restore", true, "a", "b", "c", "d", "e", "kubernetes")
		time.Sleep(time.Second)
		synctest.Wait()
		l.expect(t, "ten minutes after it", false, "c", "d", "e", "kubernetes")
		for _, name := range l.has() {
			l.delete(name)
		}
		l.expect(t, "a watch reports the deletion of all", false)
	})
}

func testLossesOfAnotherStorage(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLister(model.LossesOptions[string]{})
		l.listOf(true, "a", "b", "c", "kubernetes")
		l.expect(t, "a first list", false, "a", "b", "c", "kubernetes")
		l.listOf(true, "a", "b", "c", "d", "kubernetes")
		l.expect(t, "one that lacks nothing", false, "a", "b", "c", "d", "kubernetes")
		l.listOf(true, "a", "b", "c", "kubernetes")
		l.expect(t, "one that lacks one of four", true, "a", "b", "c", "d", "kubernetes")
		if held := l.guard.Held(); !strings.Contains(held[0], "the source lacks 1 of 5 and is another cluster or has a new storage, by the UID of default/kubernetes; ") {
			t.Errorf("held: %q", held)
		}
		time.Sleep(model.DefaultPatience)
		synctest.Wait()
		l.expect(t, "ten minutes later", false, "a", "b", "c", "kubernetes")
	})
}

func testLossesThatComeBack(t *testing.T) {
	inTime(t, func(t *testing.T) {
		for name, comeBack := range map[string]func(l *lister){
			"in a list":  func(l *lister) { l.list("a", "b", "c") },
			"by a watch": func(l *lister) { l.set("b"); l.set("a"); l.set("c") },
			"partly, and a watch reports that the rest is deleted": func(l *lister) { l.set("a"); l.set("c"); l.delete("b"); l.set("b") },
		} {
			l := newLister(model.LossesOptions[string]{})
			l.list("a", "b")
			l.list()
			comeBack(l)
			l.expect(t, name, false, "a", "b", "c")
			time.Sleep(24 * time.Hour)
			l.expect(t, name+", a day later", false, "a", "b", "c")
			l.list("a")
			l.expect(t, name+": the next list", false, "a")
		}
	})
}

func testLossesThatAreReplaced(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLister(model.LossesOptions[string]{})
		l.list("a-1", "a-2", "b-1")
		l.list("a-3")
		l.expect(t, "by a list", false, "a-3")
		l.list("b-1", "c-1", "a-3")
		l.list()
		l.set("b-2")
		l.expect(t, "by a watch", true, "a-3", "b-2", "c-1")
		l.set("none-c")
		l.expect(t, "not by what serves nothing", true, "a-3", "b-2", "c-1", "none-c")
		l.set("c-1")
		l.set("a-1")
		l.expect(t, "all", false, "a-1", "b-2", "c-1", "none-c")
	})
}

func testLossesAreBelievedOnDemand(t *testing.T) {
	l := newLister(model.LossesOptions[string]{})
	l.list("a", "b")
	if l.guard.Believe() {
		t.Error("something was held")
	}
	l.list("kubernetes")
	if !l.guard.Believe() {
		t.Error("nothing was held")
	}
	l.expect(t, "believed", false, "kubernetes")
}

func testLossesOfWhatMayBeEmpty(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLister(model.LossesOptions[string]{Awaited: true, MayBeEmpty: true})
		l.guard.Patience = time.Second
		l.guard.Before = func(string, bool) bool { return true }
		l.list()
		if l.believed != 1 {
			t.Error("a first list without any is not believed")
		}
		l.list("a")
		l.list()
		l.expect(t, "at first", true, "a")
		time.Sleep(time.Second)
		synctest.Wait()
		l.expect(t, "later", false)
	})
}

// TestFirstList is about lists before one is believed.
func TestFirstList(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first         []string
		before        func(string, bool) bool
		other, awaits bool
	}{
		{"is believed without a question", nil, nil, true, false},
		{"is believed over nothing", nil, func(string, bool) bool { return false }, true, false},
		{"is not believed without any over some", nil, func(string, bool) bool { return true }, true, true},
		{"asks of others than default/kubernetes", []string{"kubernetes", "none-1"}, func(_ string, kubernetes bool) bool { return !kubernetes }, true, false},
		{"is not believed with default/kubernetes alone over others", []string{"kubernetes"}, func(_ string, kubernetes bool) bool { return kubernetes }, true, true},
		{"is believed with one other", []string{"a"}, func(string, bool) bool { return true }, true, false},
		{"is believed of what nobody awaits", nil, func(string, bool) bool { return true }, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, believe := range map[string]func(l *lister){
				"a watch":  func(l *lister) { l.set("kubernetes"); l.set("b") },
				"a list":   func(l *lister) { l.list(append(slices.Clone(tc.first), "b")...) },
				"somebody": func(l *lister) { l.guard.Believe() },
			} {
				l := newLister(model.LossesOptions[string]{Awaited: tc.other})
				l.guard.Before = tc.before
				l.list(tc.first...)
				l.expect(t, "at first", tc.awaits, tc.first...)
				if got := l.losses.Believed(); got == tc.awaits {
					t.Errorf("believed: %v", got)
				}
				believe(l)
				if l.believed != 1 || !l.losses.Believed() || len(l.guard.Held()) > 0 {
					t.Errorf("%s: Believed was called %d times, held: %q", name, l.believed, l.guard.Held())
				}
			}
		})
	}
}

// Whatever happens: what the source has is there. What it does not have any more is gone when the hold is over.
func testLossesFollowTheSource(t *rapid.T) {
	l, source := newLister(model.LossesOptions[string]{}), map[string]bool{}
	name := rapid.SampledFrom([]string{"a-1", "a-2", "b-1", "c-1", "none-1", "kubernetes"})
	l.list()
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			for name := range source {
				if !slices.Contains(l.has(), name) {
					t.Fatalf("%s is in the source, and not in %v", name, l.has())
				}
			}
			if len(l.guard.Held()) == 0 && len(l.has()) > len(source) {
				t.Fatalf("nothing is held, and of %v the source has only %v", l.has(), source)
			}
			if len(l.guard.Held()) > 0 && len(l.has()) == len(source) {
				t.Fatalf("%q, and the source has all", l.guard.Held())
			}
		},
		"set": func(t *rapid.T) {
			n := name.Draw(t, "name")
			source[n] = true
			l.set(n)
		},
		"delete": func(t *rapid.T) {
			n := name.Draw(t, "name")
			delete(source, n)
			l.delete(n)
		},
		"list": func(t *rapid.T) {
			source = map[string]bool{}
			for _, n := range rapid.SliceOf(name).Draw(t, "names") {
				source[n] = true
			}
			l.listOf(rapid.Bool().Draw(t, "another storage"), slices.Collect(maps.Keys(source))...)
		},
		"believe": func(t *rapid.T) { l.guard.Believe() },
	})
}

func testLossesAreTold(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLister(model.LossesOptions[string]{})
		var told []string
		l.guard.OnHeld = func(resource, reason string) { told = append(told, resource+": "+reason) }
		l.list("a", "b", "kubernetes")
		l.list("kubernetes")
		l.list("kubernetes")
		if diff := cmp.Diff(told, l.guard.Held()); diff != "" {
			t.Errorf("Held (-told +got):\n%s", diff)
		}
		l.set("c")
		l.set("d")
		end := time.Now().Add(model.DefaultPatience).UTC().Format(time.RFC3339)
		time.Sleep(model.DefaultPatience)
		synctest.Wait()
		want := []string{
			"services: the source lacks 2 of 3; what it lacks stays until 10m0s after it has others",
			"services: the source lacks 2 of 3; what it lacks stays until " + end,
			"services: ",
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}
