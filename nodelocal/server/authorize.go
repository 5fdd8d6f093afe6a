package server

import (
	"crypto/x509"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// nodeUser is how a certificate names a node (Kubernetes' Node authorizer).
const nodeUser = "system:node:"

// authorize returns an error unless the peer may watch the node. Without TLS it has come over a socket of this machine, whose
// mode says who may.
func (s *Server) authorize(node string, peer identity) error {
	if s.options.TLS == nil || s.options.AnyNode {
		return nil
	}
	info, _ := peer.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return status.Errorf(codes.PermissionDenied, "the client has no certificate, and to watch node %q it must have one for %q", node, nodeUser+node)
	}
	names := namesIn(info.State.PeerCertificates[0])
	if slices.Contains(names, nodeUser+node) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "the client's certificate is for %.1000q, and to watch node %q it must be for %q; "+
		"--authorize-node-names=false lets every certificate watch every node", names, node, nodeUser+node)
}

// namesIn returns the common name and the alternative names of a certificate that can name a node.
func namesIn(cert *x509.Certificate) []string {
	names := slices.Concat([]string{cert.Subject.CommonName}, cert.DNSNames)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	return names
}

// logged remembers texts that were logged, up to 1,000 of them.
type logged struct {
	mu    sync.Mutex
	texts map[string]struct{}
}

// first reports whether a text is to be logged: it is new, and the memory has room for it.
func (l *logged) first(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.texts[text]; known || len(l.texts) == 1000 {
		return false
	}
	if l.texts == nil {
		l.texts = map[string]struct{}{}
	}
	l.texts[text] = struct{}{}
	return true
}
