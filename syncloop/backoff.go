package syncloop

import "time"

const (
	// minBackoff is the wait after the first failure.
	minBackoff = 100 * time.Millisecond
	// maxBackoff is the longest wait between two tries.
	maxBackoff = 30 * time.Second
	// hopeShare divides the wait after new changes: they bring the next try forward, but not so much
	// that a busy cluster makes a hot loop of it.
	hopeShare = 10
)

// backoff is the time of the next try. The zero value means at once.
type backoff struct {
	wait   time.Duration
	failed time.Time
	until  time.Time
}

// fail notes a failure now and returns how long to wait.
func (b *backoff) fail() time.Duration {
	b.wait = min(max(2*b.wait, minBackoff), maxBackoff)
	b.failed = time.Now()
	b.until = b.failed.Add(b.wait)
	return b.wait
}

// failing reports whether the last try failed.
func (b *backoff) failing() bool { return b.wait > 0 }

// hope brings the next try forward.
func (b *backoff) hope() {
	if b.failing() {
		b.until = b.failed.Add(max(b.wait/hopeShare, minBackoff))
	}
}

// reset makes backoff the zero value, after a success.
func (b *backoff) reset() {
	*b = backoff{}
}
