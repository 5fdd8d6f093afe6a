package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certificates")
	ca, err := newAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, addrs := range map[string][]netip.Addr{"server": {netip.MustParseAddr("127.0.0.1")}, "node": nil} {
		if err := ca.issue(name, "system:"+name, addrs...); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	if text, err := os.ReadFile(filepath.Join(dir, authorityFile)); err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatalf("no certificate of the CA: %v", err)
	}
	load := func(name string) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.TLS.PeerCertificates[0].Subject.CommonName; got != "system:node" {
			t.Errorf("the client is %q", got)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{load("server")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()
	get := func(config *tls.Config, host string) error {
		_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		response, err := client.Get("https://" + net.JoinHostPort(host, port))
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	t.Run("server and client verify each other", func(t *testing.T) {
		if err := get(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{load("node")}}, "127.0.0.1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the certificate is for no other name", func(t *testing.T) {
		if err := get(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{load("node")}}, "localhost"); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a client without a certificate is refused", func(t *testing.T) {
		if err := get(&tls.Config{RootCAs: pool}, "127.0.0.1"); err == nil {
			t.Error("no error")
		}
	})
}
