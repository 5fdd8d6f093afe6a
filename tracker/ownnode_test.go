package tracker

import (
	"strings"
	"testing"
)

func TestTrackerEveryNode(t *testing.T) {
	tracker := New(Options{EveryNode: true})
	for name, call := range map[string]func(){
		"Changes": func() { tracker.Changes() },
		"Take":    func() { tracker.Take() },
		"Dirty":   func() { tracker.Dirty() },
		"Resync":  func() { tracker.Resync() },
	} {
		t.Run(name+" panics and names the way out", func(t *testing.T) {
			expectPanic(t, call, "tracker: this Tracker has no node of its own", "Options.NodeName", "Tracker.View")
		})
	}
	t.Run("a view of any node works", func(t *testing.T) {
		view := tracker.View("node-1", 0)
		defer view.Close()
		tracker.Synced()
		if changes, _ := view.Take(); changes == nil || !changes.Full || changes.Node.Name != "node-1" {
			t.Errorf("the first changes are %+v, want full ones of node-1", changes)
		}
	})
}

func TestTrackerOneNode(t *testing.T) {
	tracker := New(Options{NodeName: "node-1"})
	t.Run("a view of its node works", func(t *testing.T) { tracker.View("node-1", 0).Close() })
	t.Run("a view of another panics and names the way out", func(t *testing.T) {
		expectPanic(t, func() { tracker.View("node-2", 0) }, `"node-2"`, `"node-1"`, "Options.EveryNode")
	})
}

// expectPanic calls a function that must panic with a message that has all the words.
func expectPanic(t *testing.T, call func(), words ...string) {
	t.Helper()
	defer func() {
		t.Helper()
		message, _ := recover().(string)
		for _, word := range words {
			if !strings.Contains(message, word) {
				t.Errorf("it panics with %q, want a message with %q", message, word)
			}
		}
	}()
	call()
}
