package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// logLines collects a log.
type logLines struct {
	mu   sync.Mutex
	text []string
}

func (l *logLines) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = append(l.text, args)
	}, funcr.Options{})
}

// with returns how many lines contain text.
func (l *logLines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.text {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// count returns an error unless n lines contain text.
func (l *logLines) count(text string, n int) error {
	if got := l.with(text); got != n {
		return fmt.Errorf("%d lines with %q, want %d", got, text, n)
	}
	return nil
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
	}}
}

// TestAuthorizeNodeNames watches and gets node-1 over TLS with certificates of one CA.
func TestAuthorizeNodeNames(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	authority := newAuthority(t, "ours")
	files := tlsFiles(t)
	issue(t, files, authority, authority, soon)
	pool := x509.NewCertPool()
	pool.AddCert(authority.Certificate)
	named := func(t *testing.T, name string) *apiservertest.Certificate {
		t.Helper()
		c, err := authority.Issue(name, soon)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	byURI, err := authority.IssueURI("system:node:node-1", soon)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []struct {
		name    string
		anyNode bool
		refused int
	}{{"on by default", false, 8}, {"off", true, 0}} {
		t.Run(mode.name, func(t *testing.T) {
			config, err := files.Server()
			if err != nil {
				t.Fatal(err)
			}
			refused := &refusals{}
			address := serveOverTLS(t, server.Options{TLS: config, AnyNode: mode.anyNode, Hooks: server.Hooks{OnRefused: refused.add}})
			for _, tt := range []struct {
				name string
				cert *apiservertest.Certificate
				may  bool
				want string
			}{
				{"the node's certificate", named(t, "system:node:node-1"), true, ""},
				{"one with the node's name as a URI", byURI, true, ""},
				{"another node's", named(t, "system:node:node-2"), false, `"system:node:node-1"`},
				{"one that begins alike", named(t, "system:node:node-11"), false, `"system:node:node-1"`},
				{"somebody's", named(t, "admin"), false, `"system:node:NAME"`},
				{"one with the bare name", named(t, "node-1"), false, `"system:node:NAME"`},
			} {
				transport := credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{*tt.cert.TLS()}})
				conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				client := nodelocalv1.NewNodeLocalClient(conn)
				_, watched := watch(t, client, "node-1")
				stream, got := client.Get(patient(t), &nodelocalv1.GetRequest{Node: "node-1"})
				if got == nil {
					_, got = stream.Recv()
				}
				for call, err := range map[string]error{"Watch": watched, "Get": got} {
					switch {
					case tt.may || mode.anyNode:
						if err != nil {
							t.Errorf("%s, %s: %v", tt.name, call, err)
						}
					case status.Code(err) != codes.PermissionDenied:
						t.Errorf("%s, %s: error %v, want PERMISSION_DENIED", tt.name, call, err)
					default:
						for _, part := range []string{tt.want, tt.cert.Subject.CommonName, "--authorize-node-names=false"} {
							if !strings.Contains(err.Error(), part) {
								t.Errorf("%s, %s: %v does not name %s", tt.name, call, err, part)
							}
						}
					}
				}
			}
			if n := refused.counted(server.RefusedPermission); n != mode.refused {
				t.Errorf("%d calls count as refused for their permission, want %d", n, mode.refused)
			}
		})
	}
	t.Run("a client without a certificate is refused, also where TLS lets it in", func(t *testing.T) {
		certificate := named(t, "server")
		address := serveOverTLS(t, server.Options{TLS: &tls.Config{
			Certificates: []tls.Certificate{*certificate.TLS()}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
		}})
		// The certificate is for no host, so the client does not look at it.
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = watch(t, nodelocalv1.NewNodeLocalClient(conn), "node-1")
		expectCode(t, err, codes.PermissionDenied, `no certificate, and must have one for its node, "system:node:NAME"`)
	})
	t.Run("a client that is refused says so at once", func(t *testing.T) {
		config, err := files.Server()
		if err != nil {
			t.Fatal(err)
		}
		address := serveOverTLS(t, server.Options{TLS: config})
		side := tlsFiles(t)
		issue(t, side, authority, authority, soon)
		err = nodelocal.Run(patient(t), "tcp://"+address, &backend{}, nodelocal.Options{Node: "node-1", TLS: side.Client})
		if !errors.Is(err, nodelocal.ErrRefused) || !strings.Contains(err.Error(), "system:node:NAME") {
			t.Errorf("Run ended with %v", err)
		}
	})
}

// serveOverTLS serves ten Services over TCP until the test ends.
func serveOverTLS(t *testing.T, options server.Options) (address string) {
	t.Helper()
	tr := servingTracker(100)
	fill(tr, 10, 1)
	tr.Synced()
	listener, err := server.Listen(t.Context(), "tcp://127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, tr, listener, options)
	return listener.Addr().String()
}
