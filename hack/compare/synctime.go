package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
)

// syncTime returns the time of all Syncs of the running proxy together, by its metrics on the node's loopback. The
// metric has a value for each IP family, and one Sync of both families counts in both. The Services here are of IPv4.
func (c *cluster) syncTime(ctx context.Context) (time.Duration, error) {
	const url, name = "http://127.0.0.1:10249/metrics", "kubeproxy_sync_proxy_rules_duration_seconds_sum"
	transport := &http.Transport{DialContext: c.lab.Node.DialContext}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", url, response.Status)
	}
	sum := time.Duration(0)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name) || strings.Contains(line, `ip_family="IPv6"`) {
			continue
		}
		seconds, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %q: %w", url, line, err)
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, lines.Err()
}

// floor returns the kernel's time to commit the tables of the node in an empty namespace, encoded before: a lower
// bound of each first Sync. It is the least of five.
func (c *cluster) floor(ctx context.Context) (least time.Duration, err error) {
	tx, err := c.tables(ctx)
	if err != nil {
		return 0, err
	}
	for i := range 5 {
		took, err := commitInNamespace(ctx, tx)
		if err != nil {
			return 0, fmt.Errorf("the floor: %w", err)
		}
		if i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// tables is the transaction that makes the node's tables.
func (c *cluster) tables(ctx context.Context) (tx nft.Transaction, err error) {
	conn, err := nft.Dial(nft.Config{NetNS: int(c.lab.Node.NetNS().Fd())})
	if err != nil {
		return tx, err
	}
	defer conn.Close()
	for _, family := range nft.Families {
		table, err := conn.ReadTable(ctx, family, "kube-proxy")
		if err != nil {
			return tx, err
		}
		tx.Append(nft.Replace(table))
	}
	return tx, nil
}

// hasTable reports whether the proxy keeps its rules in table ip kube-proxy.
func (c *cluster) hasTable(ctx context.Context) (bool, error) {
	conn, err := nft.Dial(nft.Config{NetNS: int(c.lab.Node.NetNS().Fd())})
	if err != nil {
		return false, err
	}
	defer conn.Close()
	return conn.HasTable(ctx, nft.FamilyIP, "kube-proxy")
}

// refuseWhatNftCannotRemove returns an error if the proxy has rules that `nft flush ruleset` leaves in place: its row would say
// that they come back at once, and the next proxy would run beside them.
func (c *cluster) refuseWhatNftCannotRemove(ctx context.Context) error {
	return c.lab.Node.Do(func() error {
		found, err := leftovers.Find(ctx)
		for _, l := range found {
			switch l.Kind {
			case leftovers.Legacy:
				return fmt.Errorf("it has %d chains of iptables-legacy (%s), which `nft flush ruleset` does not remove: "+
					"put an iptables that is iptables-nft first in PATH", l.Count, l.Example)
			case leftovers.IPVS:
				return fmt.Errorf("it runs in ipvs mode (%s), whose virtual servers `nft flush ruleset` does not remove: "+
					"compare measures the modes nftables and iptables", l.Example)
			}
		}
		return err
	})
}

func commitInNamespace(ctx context.Context, tx nft.Transaction) (time.Duration, error) {
	namespace, err := netns.New()
	if err != nil {
		return 0, err
	}
	defer namespace.Close()
	conn, err := nft.Dial(nft.Config{NetNS: namespace.FD()})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stats, err := conn.Commit(ctx, tx)
	return stats.Kernel, err
}

// untilServed dials the address from a pod until a connection comes about, and returns when it did. Attempts do not
// wait for each other, so the answer is exact to the time between them: 1 ms in the first second, 10 ms after.
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
			return time.Time{}, fmt.Errorf("%s is not served: %w", addr, context.Cause(ctx))
		case <-time.After(between):
		}
	}
}
