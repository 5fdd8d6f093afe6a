package realapiserver

import (
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

const (
	// cuts is the number of connections that break. Others, which the client opens and does not use, do not count.
	cuts = 3
	// cutAfter is the number of bytes after which they do: more than a handshake, less than the lists, which are compressed.
	cutAfter = 10_000
	// piece is the number of bytes that are passed on at a time, with a pause between.
	piece = 2_000
	pause = 20 * time.Millisecond
)

// relay stands between the proxy and the API server. It passes answers on slowly, and breaks the first connections.
type relay struct {
	// server is the address of the API server, and address that of the relay.
	server, address string
	// cut is the number of connections that were broken.
	cut atomic.Int64
}

func newRelay(t *testing.T, c *cluster) *relay {
	t.Helper()
	server, err := url.Parse(c.server.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{server: server.Host, address: "127.0.0.1:16443"}
	lab.ServeTCP(t, c.lab.Node, r.address, func(client net.Conn) {
		defer client.Close()
		upstream, err := c.lab.Node.DialContext(context.Background(), "tcp", r.server)
		if err != nil {
			return
		}
		defer upstream.Close()
		go func() {
			_, _ = io.Copy(upstream, client)
			upstream.Close()
		}()
		r.pass(client, upstream)
	})
	return r
}

// pass passes answers on, slowly, until it breaks the connection or the server ends it.
func (r *relay) pass(to io.Writer, from io.Reader) {
	for passed := int64(0); ; {
		n, err := io.CopyN(to, from, piece)
		if passed += n; err != nil {
			return
		}
		if passed >= cutAfter && r.cut.Load() < cuts {
			r.cut.Add(1)
			return
		}
		time.Sleep(pause)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
