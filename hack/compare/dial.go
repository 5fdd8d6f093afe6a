package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// untilServed dials the address from a pod until a connection comes about, and returns when it did. Attempts do not wait
// for each other, so the answer is exact to the time between them: 1 ms in the first second, 10 ms after.
func (c *cluster) untilServed(ctx context.Context, addr netip.AddrPort, patience time.Duration) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	served := make(chan time.Time, 1)
	begin := time.Now()
	for {
		go func() {
			// A thread of its own, inside the pod.
			_ = c.lab.Client.Do(func() error {
				dialer := net.Dialer{Timeout: 300 * time.Millisecond}
				conn, err := dialer.DialContext(ctx, "tcp4", addr.String())
				if err != nil {
					return err
				}
				select {
				case served <- time.Now():
				default:
				}
				return conn.Close()
			})
		}()
		between := time.Millisecond
		if time.Since(begin) > time.Second {
			between = 10 * time.Millisecond
		}
		select {
		case at := <-served:
			return at, nil
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s is not served: %w", addr, ctx.Err())
		case <-time.After(between):
		}
	}
}
