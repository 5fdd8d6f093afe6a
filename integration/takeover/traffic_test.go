package takeover

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// traffic is new and established connections to all that the manifests have.
type traffic struct {
	streams     []*stream
	established map[*stream]*connection
	stop        chan struct{}
	running     sync.WaitGroup

	// mu guards what follows.
	mu sync.Mutex
	// lost holds new connections that did not become what they must, broken established ones, and moved clients that
	// did not keep their endpoint.
	lost, broken, moved []error
}

// startTraffic makes the endpoints of the manifests, opens a connection for each stream that is served, and has
// all of it used until finish.
func startTraffic(t *testing.T, l *lab.Lab) *traffic {
	t.Helper()
	return startStreams(t, l, streamsOf(l))
}

func startStreams(t *testing.T, l *lab.Lab, streams []*stream) *traffic {
	t.Helper()
	serveEndpoints(t, l)
	return startClients(t, streams)
}

// startClients is startStreams where the endpoints serve already.
func startClients(t *testing.T, streams []*stream) *traffic {
	t.Helper()
	tr := &traffic{streams: streams, established: map[*stream]*connection{}, stop: make(chan struct{})}
	t.Cleanup(tr.end)
	for _, s := range tr.streams {
		if s.want == served {
			tr.establish(t, s)
		}
	}
	for _, s := range tr.streams {
		tr.running.Go(func() {
			if err := s.run(tr.stop, tr.noteNew); err != nil {
				tr.note(&tr.broken, err)
			}
		})
	}
	tr.flow(t)
	if len(tr.lost) > 0 {
		t.Fatalf("before anything happened: %v", errors.Join(tr.lost...))
	}
	return tr
}

func (tr *traffic) establish(t *testing.T, s *stream) {
	t.Helper()
	var c *connection
	if err := s.from.Do(func() (err error) {
		c, err = s.dial()
		return err
	}); err != nil {
		t.Fatalf("before anything happened: %s: %v", s, err)
	}
	t.Cleanup(c.close)
	tr.established[s] = c
	tr.running.Go(func() {
		if err := c.keepAsking(tr.stop); err != nil {
			tr.note(&tr.broken, fmt.Errorf("established connection of %s: %w", s, err))
		}
	})
}

func (tr *traffic) noteNew(err error) {
	if errors.Is(err, errMoved) {
		tr.note(&tr.moved, err)
	} else {
		tr.note(&tr.lost, err)
	}
}

func (tr *traffic) note(list *[]error, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	*list = append(*list, err)
}

// flow waits until every stream made enough connections more, and every established one was used as often.
func (tr *traffic) flow(t *testing.T) {
	t.Helper()
	before := tr.counts()
	await.Progress(t, "traffic flows", func() (done int64, err error) {
		for i, now := range tr.counts() {
			made := now.n - before[i].n
			if made < now.enough && !tr.anyBroken() {
				err = fmt.Errorf("%s: %d of %d", now.what, made, now.enough)
			}
			done += min(made, now.enough)
		}
		return done, err
	})
}

type count struct {
	what      string
	n, enough int64
}

func (tr *traffic) counts() (all []count) {
	for _, s := range tr.streams {
		c := count{s.String(), s.made.Load(), enough}
		if s.want == dropped {
			c.enough = 3 // each waits
		}
		all = append(all, c)
		if e := tr.established[s]; e != nil {
			all = append(all, count{"established: " + s.String(), e.echos.Load(), enough})
		}
	}
	return all
}

func (tr *traffic) anyBroken() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.broken) > 0
}

func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	tr.running.Wait()
}

// finish lets traffic flow once more, ends it, and fails the test if an established connection broke, or if more new
// ones went wrong than an exchange of rulesets explains.
func (tr *traffic) finish(t *testing.T) {
	t.Helper()
	tr.flow(t)
	tr.end()
	var made int64
	for _, s := range tr.streams {
		made += s.made.Load()
	}
	t.Logf("%d new connections, of which went wrong: %v; %d established ones; moved: %v", made, tr.lost, len(tr.established), tr.moved)
	if len(tr.moved) > unlucky {
		t.Errorf("clients with session affinity moved %d times", len(tr.moved))
	}
	if len(tr.lost) > unlucky {
		t.Errorf("%d connections went wrong:\n%v", len(tr.lost), errors.Join(tr.lost...))
	}
	if len(tr.broken) > 0 {
		t.Error(errors.Join(tr.broken...))
	}
}
