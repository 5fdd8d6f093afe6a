package proxy

import (
	"testing"
	"time"
)

func TestContest(t *testing.T) {
	start := time.Now()
	for _, tc := range []struct {
		name string
		// gap is the time between repairs.
		gap     time.Duration
		repairs int
		want    time.Duration
	}{
		{"a few repairs may be chance", time.Second, contestRepairs, 0},
		{"one more makes the next comparison wait", time.Second, contestRepairs + 1, CheckInterval},
		{"each next one waits twice as long", time.Second, contestRepairs + 3, 4 * CheckInterval},
		{"repairs now and then do not belong together", contestGap + time.Second, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c contest
			now, wait := start, time.Duration(0)
			for range tc.repairs {
				now = now.Add(tc.gap)
				wait = c.note(true, now)
				c.note(false, now)
			}
			if wait != tc.want {
				t.Errorf("the wait is %v, want %v", wait, tc.want)
			}
		})
	}
	t.Run("it waits for as long as it goes on at the pace of the waits", func(t *testing.T) {
		var c contest
		now, wait := start, time.Duration(0)
		for range contestRepairs + 20 {
			now = now.Add(wait + time.Second)
			wait = c.note(true, now)
		}
		if wait != maxRetryDelay {
			t.Errorf("the wait is %v, want %v", wait, maxRetryDelay)
		}
	})
}
