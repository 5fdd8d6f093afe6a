package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCrowd(t *testing.T) {
	answer := clientAddrs[0].Addr().String() + ":1234"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/clientip" {
			_, _ = w.Write([]byte(answer))
		}
	}))
	defer server.Close()
	c := &crowd{}
	for range connectionsOfFamily {
		c.all = append(c.all, &member{path: path{"here", new(net.Dialer).DialContext, server.Listener.Addr().String()}})
	}
	defer c.disperse()
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	t.Run("connections stay", func(t *testing.T) {
		before := c.all[7].conn
		if got := c.ask(); got.requests != connectionsOfFamily || got.failed > 0 || c.all[7].conn != before {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a lost connection is counted once, until it is opened again", func(t *testing.T) {
		c.all[3].conn.Close()
		if got := c.ask(); got.failed != 1 || !strings.Contains(got.errors[0].Error(), "here: ") {
			t.Errorf("got %+v", got)
		}
		if got := c.ask(); got.failed != 0 || got.requests != connectionsOfFamily-1 {
			t.Errorf("got %+v", got)
		}
		if err := c.open(); err != nil {
			t.Error(err)
		}
		if got := c.ask(); got.failed != 0 || got.requests != connectionsOfFamily {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("another client than the own one is a failure", func(t *testing.T) {
		if got := c.seen(context.Background()); got.requests != 10 || got.failed != 0 {
			t.Errorf("got %+v", got)
		}
		answer = "192.168.0.11:1234"
		if got := c.seen(context.Background()); got.failed != 10 || !strings.Contains(got.errors[0].Error(), "the server sees 192.168.0.11:1234") {
			t.Errorf("got %+v", got)
		}
	})
}
