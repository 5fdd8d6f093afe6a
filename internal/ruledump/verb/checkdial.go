package verb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of --dial.
const (
	maxDialed     = 200
	dialedAtOnce  = 16
	dialPatience  = time.Second
	dialedInTotal = 15 * time.Second
)

// dial opens a TCP connection from the node to each endpoint, and closes it at once.
func (e *checker) dial(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, dialedInTotal)
	defer stop()
	endpoints := e.tcpEndpoints()
	if more := len(endpoints) - maxDialed; more > 0 {
		e.notLooked(fmt.Sprintf("--dial: %d endpoints beyond the first %d", more, maxDialed))
		endpoints = endpoints[:maxDialed]
	}
	results, dialed := make([]error, len(endpoints)), 0
	var wait sync.WaitGroup
	slots := make(chan struct{}, dialedAtOnce)
	for i, at := range endpoints {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break // a dial would not say anything about the endpoint
		}
		dialed++
		wait.Go(func() {
			defer func() { <-slots }()
			conn, err := (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "tcp", at.String())
			if results[i] = err; err == nil {
				conn.Close()
			}
		})
	}
	wait.Wait()
	if left := len(endpoints) - dialed; left > 0 {
		e.noTime(fmt.Sprintf("--dial: %d endpoints: there was no time for them", left))
	}
	byCause := map[string]map[netip.AddrPort]bool{}
	for i, err := range results {
		if cause := dialCause(err); cause != "" {
			if byCause[cause] == nil {
				byCause[cause] = map[netip.AddrPort]bool{}
			}
			byCause[cause][endpoints[i]] = true
		}
	}
	for _, cause := range slices.Sorted(maps.Keys(byCause)) {
		hit := byCause[cause]
		c := e.fact(levelBroken, cause, "this node dialed the endpoints themselves, past the rules for Services", "kubectl get endpointslices -A -o wide; ss -ltn in the pod")
		e.hit(c, func(at netip.AddrPort) bool { return hit[at] })
	}
}

// dialCause says what a failed connection means; empty if it came about.
func dialCause(err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ECONNREFUSED):
		return "endpoints refuse connections (wrong port?)"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("endpoints give no answer within %v", dialPatience)
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return "endpoints cannot be dialed: " + errno.Error()
	}
	return "endpoints cannot be dialed"
}

// tcpEndpoints lists the endpoints of TCP, each once.
func (e *checker) tcpEndpoints() (list []netip.AddrPort) {
	seen := map[netip.AddrPort]bool{}
	for _, f := range e.frontends {
		if uint8(f.Protocol) != unix.IPPROTO_TCP {
			continue
		}
		for _, at := range slices.Concat(f.Endpoints, f.LocalEndpoints) {
			if !seen[at] {
				seen[at] = true
				list = append(list, at)
			}
		}
	}
	return list
}
