package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

func newAuthority(t *testing.T, name string) *apiservertest.Certificate {
	t.Helper()
	a, err := apiservertest.NewAuthority(name, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue writes the files of one side, which trusts the CA trusted; files that are there are replaced.
func issue(t *testing.T, files nodelocal.TLSFiles, signer, trusted *apiservertest.Certificate, expires time.Time) {
	t.Helper()
	side, err := signer.Issue("side", expires)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{files.Cert: side.CertPEM(), files.Key: side.KeyPEM(), files.CA: trusted.CertPEM()} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func tlsFiles(t *testing.T) nodelocal.TLSFiles {
	dir := t.TempDir()
	return nodelocal.TLSFiles{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
}

func testServerOverTLS(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	serverFiles := tlsFiles(t)
	issue(t, serverFiles, ours, ours, soon)
	config, err := serverFiles.Server()
	if err != nil {
		t.Fatal(err)
	}
	tr := servingTracker(100)
	fill(tr, 10, 1)
	tr.Synced()
	plain, err := server.Listen(t.Context(), "tcp://127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	connections := &testServer{}
	listener := cuttable{plain, connections}
	address := listener.Addr().String()
	var refused refusals
	var log logLines
	serveOn(t, tr, listener, server.Options{TLS: config, AnyNode: true, Logger: log.logger(), Hooks: server.Hooks{OnRefused: refused.add}})
	// ask watches over a connection of its own.
	ask := func(t *testing.T, transport credentials.TransportCredentials) error {
		t.Helper()
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = watch(t, nodelocalv1.NewNodeLocalClient(conn), "node-1")
		return err
	}
	client := func(t *testing.T, signer, trusted *apiservertest.Certificate, expires time.Time) credentials.TransportCredentials {
		t.Helper()
		files := tlsFiles(t)
		issue(t, files, signer, trusted, expires)
		config, err := files.Client()
		if err != nil {
			t.Fatal(err)
		}
		return credentials.NewTLS(config)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate)
	for _, tc := range []struct {
		name      string
		transport credentials.TransportCredentials
		// want is in the error, if the client is the one that refuses.
		want string
	}{
		{"no client certificate", credentials.NewTLS(&tls.Config{RootCAs: pool}), ""},
		{"a client certificate of another CA", client(t, others, ours, soon), ""},
		{"a client certificate that has expired", client(t, ours, ours, time.Now().Add(-time.Minute)), ""},
		{"TLS 1.2", credentials.NewTLS(&tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12}), ""},
		{"no TLS", insecure.NewCredentials(), ""},
		{"a server certificate of a CA that the client does not trust", client(t, ours, others, soon), "unknown authority"},
	} {
		t.Run("refuses "+tc.name, func(t *testing.T) {
			if err := ask(t, tc.transport); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want no connection, %q", err, tc.want)
			}
		})
	}
	t.Run("counts and logs who was refused", func(t *testing.T) {
		eventually(t, func() string {
			if n := refused.counted(server.RefusedTLS); n < 6 {
				return fmt.Sprintf("%d handshakes are counted, want 6", n)
			}
			return ""
		})
		for _, want := range []string{`"peer"="127.0.0.1"`, "client didn't provide a certificate", "certificate has expired", "unsupported versions", "bad certificate", "does not look like a TLS handshake"} {
			if log.with(want) == 0 {
				t.Errorf("the log does not have %q", want)
			}
		}
	})
	t.Run("logs no more than one refusal in ten seconds after the first ones", func(t *testing.T) {
		before := log.with("Refused a connection")
		for range 100 {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(await.Patience))
			_, _ = conn.Write([]byte("garbage that is no TLS\n"))
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}
		if n := log.with("Refused a connection") - before; n > 30 {
			t.Errorf("100 refusals made %d lines", n)
		}
	})
	t.Run("serves a client of the CA, and goes on when the files are replaced", func(t *testing.T) {
		files := tlsFiles(t)
		issue(t, files, ours, ours, soon)
		now := func() credentials.TransportCredentials {
			config, err := files.Client()
			if err != nil {
				t.Fatal(err)
			}
			return credentials.NewTLS(config)
		}
		follower := &backend{}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- nodelocal.Run(ctx, "tcp://"+address, follower, nodelocal.Options{Node: "node-1", TLS: files.Client})
		}()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		has := func() {
			t.Helper()
			view := tr.View("node-1", 0)
			defer view.Close()
			want, _ := view.Take()
			eventually(t, func() string { return follower.difference(want) })
		}
		has()
		// The server trusts another CA now, and still has a certificate of the first one.
		issue(t, serverFiles, ours, others, soon)
		if err := ask(t, now()); status.Code(err) != codes.Unavailable {
			t.Errorf("a client of the CA before: error %v, want none to be let in", err)
		}
		issue(t, files, others, ours, soon)
		if err := ask(t, now()); err != nil {
			t.Errorf("the client with its new certificate: %v", err)
		}
		tr.SetEndpointSlice(slice(3, 2, 0)) // over the connection that was there
		has()
		// Now the server has a certificate of the other CA. The client comes back when its own file says so too.
		issue(t, serverFiles, others, others, soon)
		if err := ask(t, now()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("a client that does not trust the new CA: error %v", err)
		}
		connections.cut()
		tr.SetEndpointSlice(slice(4, 2, 0))
		issue(t, files, others, others, soon)
		has()
	})
}
