// Package await lets tests wait for something that must happen, and fails them with the reason why
// it has not happened yet.
package await

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Patience bounds each wait for something that must happen. It is long, because only a test that
// fails waits for its end, and because reflectors of client-go back off for up to 30 s.
const Patience = time.Minute

// pause is the time between two checks.
const pause = 10 * time.Millisecond

// Until returns once check returns nil. It fails the test with the last error of check when that has not
// happened within Patience. The subject names the awaited state, as in "the rules are in the kernel".
func Until(t testing.TB, subject string, check func() error) {
	t.Helper()
	Within(t, Patience, subject, check)
}

// True is Until for a condition that has nothing to add to the subject.
func True(t testing.TB, subject string, holds func() bool) {
	t.Helper()
	Until(t, subject, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// Within is Until with another patience.
func Within(t testing.TB, patience time.Duration, subject string, check func() error) {
	t.Helper()
	if err := Poll(patience, check); err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
}

// Progress waits like Until for work that is much on a slow machine: the patience begins anew whenever check has more
// done than ever before.
func Progress(t testing.TB, subject string, check func() (done int64, err error)) {
	t.Helper()
	most := int64(0)
	for deadline := time.Now().Add(Patience); ; time.Sleep(pause) {
		done, err := check()
		if err == nil {
			return
		}
		if done > most {
			most, deadline = done, time.Now().Add(Patience)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no progress for %v: %v", subject, Patience, err)
		}
	}
}

// Receive waits for what a channel gives. The subject names it.
func Receive[T any](t testing.TB, subject string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(Patience):
		t.Fatalf("%s: nothing came for %v", subject, Patience)
	}
	return got
}

// Poll is Within for goroutines that are not the test's own: it returns the error.
func Poll(patience time.Duration, check func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("still not after %v: %w", patience, err)
		}
	}
}

// Buffer collects output and can be read while it is written.
type Buffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}

// Parallel sets how many parallel tests of a package run at once, whatever the number of cores, for packages whose
// tests mostly wait: for back-offs, timeouts, other processes. A TestMain calls it before m.Run. The flag -parallel
// takes precedence.
func Parallel(n string) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err) // the flag has another name in this version of Go
	}
}
