package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
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

	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(template, template, a.key)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(template, parent *x509.Certificate, subject *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &subject.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// issue writes the files of one side, which trusts the CA trusted; files that are there are replaced.
func (a *authority) issue(files nodelocal.TLSFiles, trusted *authority, expires time.Time) {
	a.t.Helper()
	key := newKey(a.t)
	cert := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "side"}, NotAfter: expires,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		files.Cert: {Type: "CERTIFICATE", Bytes: cert.Raw},
		files.Key:  {Type: "EC PRIVATE KEY", Bytes: der},
		files.CA:   {Type: "CERTIFICATE", Bytes: trusted.cert.Raw},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
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
	ours.issue(serverFiles, ours, soon)
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
	connections := &brain{}
	listener := cuttable{plain, connections}
	address := listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.New(tr, server.Options{TLS: config}).Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
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
	client := func(t *testing.T, signer, trusted *authority, expires time.Time) credentials.TransportCredentials {
		t.Helper()
		files := tlsFiles(t)
		signer.issue(files, trusted, expires)
		config, err := files.Client()
		if err != nil {
			t.Fatal(err)
		}
		return credentials.NewTLS(config)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
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
	t.Run("serves a client of the CA, and goes on when the files are replaced", func(t *testing.T) {
		files := tlsFiles(t)
		ours.issue(files, ours, soon)
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
		ours.issue(serverFiles, others, soon)
		if err := ask(t, now()); status.Code(err) != codes.Unavailable {
			t.Errorf("a client of the CA before: error %v, want none to be let in", err)
		}
		others.issue(files, ours, soon)
		if err := ask(t, now()); err != nil {
			t.Errorf("the client with its new certificate: %v", err)
		}
		tr.SetEndpointSlice(slice(3, 2, 0)) // over the connection that was there
		has()
		// Now the server has a certificate of the other CA. The client comes back when its own file says so too.
		others.issue(serverFiles, others, soon)
		if err := ask(t, now()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("a client that does not trust the new CA: error %v", err)
		}
		connections.cut()
		tr.SetEndpointSlice(slice(4, 2, 0))
		others.issue(files, others, soon)
		has()
	})
}
