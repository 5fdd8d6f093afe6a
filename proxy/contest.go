package proxy

import "time"

const (
	// contestGap is the longest time between two repairs in a row.
	contestGap = 10 * time.Second
	// contestRepairs is how many repairs in a row can be chance. More are a contest.
	contestRepairs = 5
)

// contest follows repairs that another program undoes again and again, such as a second proxy with another
// configuration. Without it, each of the two would repair the tables for ever, as fast as it can. The zero value means
// no repairs yet.
type contest struct {
	repairs int
	last    time.Time
	wait    time.Duration
}

// note takes the result of a check, and returns how long not to compare the tables. Missing tables are added
// nevertheless.
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
