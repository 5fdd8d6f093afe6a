// Package apiservertest is a Kubernetes API server for tests. It has a real TCP listener with TLS
// and HTTP/2, a bearer token, and the part of the API that watchers of Services use. Lists,
// watches, streaming lists (sendInitialEvents), bookmarks, resource versions, label and field
// selectors and both encodings (JSON and protobuf) behave as those of kube-apiserver.
//
// It fails on command, where a real server fails only by chance: it drops every connection, goes
// away and comes back on the same port, ends all watches, forgets its history, refuses a resource,
// or never answers for it.
//
// It keeps objects as they are written: there is no defaulting, no validation, and no authorization
// beyond the token. [StartBinaries] starts the real programs where that matters.
package apiservertest

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Options say how the server behaves. The zero value is a current server on a free loopback port.
type Options struct {
	// Address is the address to listen on. Default 127.0.0.1:0, a free port.
	Address string
	// WithoutWebsockets makes the server upgrade requests to run a command to SPDY alone, as old HTTP proxies before a
	// server do.
	WithoutWebsockets bool
	// WithoutWatchList makes the server refuse sendInitialEvents, as servers do that are older
	// than Kubernetes 1.32 or have the feature switched off. Clients then list and watch.
	WithoutWatchList bool
}

// serverName is the host name in the certificate. A kubeconfig names it too, so the server can
// listen on any address, also one in another network namespace.
const serverName = "apiserver.test"

// aDay is longer than any test runs.
const aDay = 24 * time.Hour

// Server is an API server. Its methods may be called from any goroutine.
type Server struct {
	options   Options
	store     *store
	authority *Certificate
	log       requestLog
	sent      atomic.Int64

	mu       sync.Mutex
	address  string
	http     *http.Server // nil while stopped
	listener *listener
	token    string
	pair     *tls.Certificate
	wrapped  map[string]func(http.Handler) http.Handler // plural resource name → what stands before its answers
	endWatch chan struct{}                              // closed, and replaced, to end every open watch
	refused  map[string]int                             // plural resource name → HTTP status
	hanging  map[string]chan struct{}                   // plural resource name → closed when it answers again
	watching map[*resource]int                          // open watches
	kubelet  Kubelet
	handlers sync.WaitGroup
}

// Start starts a server that is closed when the test ends.
func Start(tb testing.TB, options Options) *Server {
	tb.Helper()
	s, err := New(options)
	if err != nil {
		tb.Fatalf("starting the API server: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

// New starts a server in the network namespace of the calling thread.
func New(options Options) (*Server, error) {
	if options.Address == "" {
		options.Address = "127.0.0.1:0"
	}
	authority, err := NewAuthority(serverName, time.Now().Add(aDay))
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	s := &Server{
		options:   options,
		store:     newStore(),
		authority: authority,
		token:     rand.Text(),
		wrapped:   map[string]func(http.Handler) http.Handler{},
		address:   options.Address,
		endWatch:  make(chan struct{}),
		refused:   map[string]int{},
		hanging:   map[string]chan struct{}{},
		watching:  map[*resource]int{},
	}
	if err := s.RenewCertificate(time.Now().Add(aDay)); err != nil {
		return nil, fmt.Errorf("server certificate: %w", err)
	}
	return s, s.Resume()
}

// Close ends the server and waits for its answers to end.
func (s *Server) Close() {
	s.Stop()
	s.handlers.Wait()
}

// URL is the server's address as a kubeconfig has it.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "https://" + s.address
}

// Stop closes the port and drops every connection: the server is gone, its objects are not.
// Objects can still be changed through Create, Update and Delete. Stopping twice is no error.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return
	}
	_ = s.listener.Close() // first: http.Server knows it only once it has begun to serve
	_ = s.http.Close()
	s.listener.closeAll()
	s.http = nil
}

// Resume listens again on the same port after Stop. The error is the listener's.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return nil
	}
	listener, err := listen(s.address, &s.sent)
	if err != nil {
		return err
	}
	s.address = listener.Addr().String()
	s.listener = listener
	s.http = &http.Server{
		Handler:   http.HandlerFunc(s.serve),
		TLSConfig: &tls.Config{GetCertificate: s.currentCertificate, ClientAuth: tls.RequestClientCert},
		ErrorLog:  log.New(io.Discard, "", 0), // tests cut connections on purpose
	}
	go func(server *http.Server) { _ = server.ServeTLS(listener, "", "") }(s.http)
	return nil
}

// DropConnections closes every connection abruptly; clients can come back at once.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener.closeAll()
}

// EndWatches ends every open watch in good order, as a server does after some minutes: whatever
// was sent before arrives.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.endWatch)
	s.endWatch = make(chan struct{})
}

// SendBookmarks makes every open watch that allows bookmarks send one with the current version.
func (s *Server) SendBookmarks() { s.store.bookmark() }

// Compact forgets the history: a watch that wants to start before the current version is told
// that its version expired, and must list anew. Open watches go on.
func (s *Server) Compact() { s.store.compact() }

// Refuse answers every request for a resource, named as in URLs ("servicecidrs"), with an HTTP
// status: 404 as a server that does not have it, 403 as one that does not allow it, anything else
// as a server that fails. Status 0 serves it again. Open watches of the resource are not ended.
func (s *Server) Refuse(plural string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[plural] = status
}

// Hang leaves every request for a resource without an answer until Answer is called or the client
// leaves. Open watches of the resource go on.
func (s *Server) Hang(plural string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hanging[plural] == nil {
		s.hanging[plural] = make(chan struct{})
	}
}

// Answer ends what Hang began: those that wait are answered as well.
func (s *Server) Answer(plural string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := s.hanging[plural]; answer != nil {
		close(answer)
		delete(s.hanging, plural)
	}
}

// Wrap puts a handler before those that answer requests for a resource, watches too; nil
// removes it. Open watches go on.
func (s *Server) Wrap(plural string, wrap func(http.Handler) http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrapped[plural] = wrap
}

// RenewCertificate gives the server a certificate of the same authority that is valid until then, which may be
// over. Open connections keep the one before.
func (s *Server) RenewCertificate(until time.Time) error {
	c, err := s.authority.Issue(serverName, until)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair = c.TLS()
	return nil
}

func (s *Server) currentCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pair, nil
}

// Token is the only one that the server takes.
func (s *Server) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// RenewToken makes the server take another token, which it returns. Open watches go on.
func (s *Server) RenewToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = rand.Text()
	return s.token
}

// ClientCertificate returns a certificate and its key, in PEM, that the server takes from a client instead of the token
// until the given time. As with a real server, each request is judged anew, also on an open connection.
func (s *Server) ClientCertificate(until time.Time) (cert, key []byte, err error) {
	c, err := s.authority.Issue(serverName, until)
	if err != nil {
		return nil, nil, err
	}
	return c.CertPEM(), c.KeyPEM(), nil
}

// authentic reports whether a request has the token or a certificate that is valid now.
func (s *Server) authentic(r *http.Request) bool {
	if r.Header.Get("Authorization") == "Bearer "+s.Token() {
		return true
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.authority.Certificate)
	_, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

// Watches tells how many watches of a resource are open now.
func (s *Server) Watches(plural string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := 0
	for r, n := range s.watching {
		if r.plural == plural {
			open += n
		}
	}
	return open
}

// Sent returns the number of bytes that the server has written to connections since it started, those of TLS and HTTP
// included.
func (s *Server) Sent() int64 { return s.sent.Load() }

// Create stores an object and returns it with its version. It fails if the object exists.
func (s *Server) Create(obj Object) (Object, error) {
	r, err := resourceOf(obj)
	if err != nil {
		return nil, err
	}
	return s.store.create(r, obj)
}

// Update replaces an object, its status too. It fails if the object does not exist, or carries a
// resourceVersion that is not the stored one; an empty resourceVersion replaces whatever is there.
func (s *Server) Update(obj Object) (Object, error) {
	r, err := resourceOf(obj)
	if err != nil {
		return nil, err
	}
	return s.store.update(r, obj)
}

// Delete removes the object with obj's kind, namespace and name. It fails if there is none.
func (s *Server) Delete(obj Object) error {
	r, err := resourceOf(obj)
	if err != nil {
		return err
	}
	_, err = s.store.remove(r, obj.GetNamespace(), obj.GetName())
	return err
}

// RESTConfig is a client configuration for the server, without a file.
func (s *Server) RESTConfig() *rest.Config {
	return &rest.Config{
		Host:            s.URL(),
		BearerToken:     s.Token(),
		TLSClientConfig: rest.TLSClientConfig{CAData: s.authority.CertPEM(), ServerName: serverName},
	}
}

// WriteKubeconfig writes a kubeconfig for the server, readable by its owner only.
func (s *Server) WriteKubeconfig(path string) error {
	return writeKubeconfig(path, s.URL(), s.authority.CertPEM(), s.Token())
}
