package proxy

import "time"

const (
	// contestGap is the time between two repairs that still belong together.
	contestGap = 10 * time.Second
	// contestRepairs is how many repairs in a row may be chance.
	contestRepairs = 5
)

// contest follows repairs that another program keeps undoing, such as a second proxy with another configuration. Each of
// the two would repair the tables for ever, as fast as it can. The zero value is peace.
type contest struct {
	repairs int
	last    time.Time
	wait    time.Duration
}

// note takes the result of a check, and returns how long to leave the tables alone. Tables that are missing are added all the
// same.
func (c *contest) note(repaired bool, now time.Time) (wait time.Duration) {
	if !repaired {
		return 0
	}
	if now.Sub(c.last) > contestGap+c.wait {
		*c = contest{}
	}
	c.repairs, c.last = c.repairs+1, now
	if c.repairs > contestRepairs {
		c.wait = min(max(2*c.wait, CheckInterval), maxRetryDelay)
	}
	return c.wait
}
