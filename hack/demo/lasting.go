package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lasting is a TCP connection that is used all through the change.
type lasting struct{ reply }

// openLasting connects to the Service until it gets a pod that stays.
func (d *demo) openLasting(ctx context.Context, leaving pod) (lasting, error) {
	c := client{d.lab.Client, "tcp", webClusterIP[0]}
	for range 100 {
		var l lasting
		err := d.lab.Client.Do(func() (err error) {
			l.reply, err = c.open(patience)
			return err
		})
		if err := errors.Join(ctx.Err(), err); err != nil {
			return l, err
		}
		if !leaving.has(l.reached.Addr()) {
			return l, nil
		}
		l.close()
	}
	return lasting{}, fmt.Errorf("100 connections to %s all reached %s", c.to, leaving.name)
}

// echoResult is what became of the lines that were sent.
type echoResult struct {
	sent, returned int
	err            error
}

// keepUsing sends a line every 20 ms and waits for it to come back, until ctx ends or it does not.
func (l lasting) keepUsing(ctx context.Context) <-chan echoResult {
	done := make(chan echoResult, 1)
	go func() {
		var result echoResult
		for result.err == nil && sleep(ctx, 20*time.Millisecond) == nil {
			result.sent++
			if result.err = l.echo(result.sent); result.err == nil {
				result.returned++
			}
		}
		done <- result
	}()
	return done
}

func (l lasting) echo(number int) error {
	if err := l.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sent := fmt.Sprintf("line %d\n", number)
	if _, err := l.conn.Write([]byte(sent)); err != nil {
		return err
	}
	got, err := l.fromTheConn.ReadString('\n')
	if err == nil && got != sent {
		err = fmt.Errorf("sent %q, got %q back", sent, got)
	}
	return err
}
