package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// newInterval is the time between two new connections of a path, and keptInterval between two requests of its kept one.
	newInterval  = 100 * time.Millisecond
	keptInterval = 200 * time.Millisecond
	// requestTimeout bounds a request with its connection. A lost SYN is sent again after 1 s, so the slowest request
	// shows it.
	requestTimeout = 5 * time.Second
	// errorsKept are how many failed requests of a step the report names.
	errorsKept = 5
)

// path is a way of requests: from a place to an address of a Service.
type path struct {
	name string
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	to   string
}

// fetch returns what a new connection gets.
func (p path) fetch(ctx context.Context, resource string) (string, error) {
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.to+resource, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return string(body), err
}

// tally counts requests.
type tally struct {
	requests, failed int
	slowest          time.Duration
	// errors are of the first failed requests.
	errors []error
}

func (t *tally) add(err error, took time.Duration) {
	t.requests++
	t.slowest = max(t.slowest, took)
	if err == nil {
		return
	}
	t.failed++
	if len(t.errors) < errorsKept {
		t.errors = append(t.errors, err)
	}
}

// join adds another tally.
func (t *tally) join(other tally) {
	t.requests, t.failed, t.slowest = t.requests+other.requests, t.failed+other.failed, max(t.slowest, other.slowest)
	t.errors = append(t.errors, other.errors[:min(len(other.errors), errorsKept-len(t.errors))]...)
}

// requests are steady requests on some paths: new connections at a fixed rate, and one that is kept.
type requests struct {
	began    time.Time
	stopping chan struct{}
	running  sync.WaitGroup

	mu sync.Mutex
	// tally is guarded by mu.
	tally tally
}

func startRequests(paths []path) *requests {
	r := &requests{began: time.Now(), stopping: make(chan struct{})}
	for _, p := range paths {
		r.running.Go(func() {
			r.every(newInterval, func() { r.running.Go(func() { r.request(p, "new connection", nil) }) })
		})
		r.running.Go(func() {
			k := &kept{}
			defer k.close()
			r.every(keptInterval, func() { r.request(p, "kept connection", k) })
		})
	}
	return r
}

// stop ends the requests. It waits for those that are on their way.
func (r *requests) stop() tally {
	close(r.stopping)
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally
}

func (r *requests) every(interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-r.stopping:
			return
		case <-ticker.C:
		}
	}
}

// request sends a request and counts it. Without a kept connection it makes a new one.
func (r *requests) request(p path, connection string, k *kept) {
	begin := time.Now()
	once := k == nil
	if once {
		k = &kept{}
	}
	err := k.get(p, once)
	if err != nil {
		err = fmt.Errorf("%s, %s, after %v of the step: %w", p.name, connection, begin.Sub(r.began).Round(time.Millisecond), err)
	}
	if once || err != nil {
		k.close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.add(err, time.Since(begin))
}

// kept is a connection that is kept. After a failure it is made anew.
type kept struct {
	conn   net.Conn
	reader *bufio.Reader
}

// get asks for the server's name.
func (k *kept) get(p path, last bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if k.conn == nil {
		conn, err := p.dial(ctx, "tcp", p.to)
		if err != nil {
			return err
		}
		k.conn, k.reader = conn, bufio.NewReader(conn)
	}
	deadline, _ := ctx.Deadline()
	if err := k.conn.SetDeadline(deadline); err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodGet, "http://"+p.to+"/hostname", nil)
	if err != nil {
		return err
	}
	request.Close = last
	if err := request.Write(k.conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(k.reader, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return nil
}

func (k *kept) close() {
	if k.conn != nil {
		k.conn.Close()
	}
	*k = kept{}
}
