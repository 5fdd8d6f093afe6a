package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/nftproxy/nftproxy/tracker"
)

func TestLogWaiting(t *testing.T) {
	t.Run("names the resource, ever more seldom, until everything is known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var lines []string
			tr := tracker.New(tracker.Options{EveryNode: true})
			s := New(tr, Options{Logger: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})})
			tr.Waiting("endpointslices: forbidden")
			time.AfterFunc(time.Hour, tr.Synced)
			s.logWaiting(t.Context())
			if n := len(lines); n < 10 || n > 20 || !strings.Contains(lines[0], "endpointslices: forbidden") {
				t.Errorf("%d lines in an hour: %q", n, lines)
			}
		})
	})
}
