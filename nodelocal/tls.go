package nodelocal

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles are the files of one side of tcp://, in PEM.
type TLSFiles struct {
	// Cert and Key are this side's certificate and its key. CA has the certificates of the authority that signs the other
	// side's certificates.
	Cert, Key, CA string
}

// Any reports whether any file is set.
func (f TLSFiles) Any() bool { return f != TLSFiles{} }

// load reads the files of one side.
func (f TLSFiles) load() (cert tls.Certificate, pool *x509.CertPool, err error) {
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return cert, nil, errors.New("TLS needs a certificate, its key, and the CA of the other side")
	}
	if cert, err = tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		return cert, nil, fmt.Errorf("certificate %s, key %s: %w", f.Cert, f.Key, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return cert, nil, err
	}
	pool = x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return cert, nil, fmt.Errorf("CA %s: no certificate in it", f.CA)
	}
	return cert, pool, nil
}

// Server returns the configuration of a server that requires a certificate of the CA from each client. It reads the
// files again for each connection, so they can be replaced.
func (f TLSFiles) Server() (*tls.Config, error) {
	if _, _, err := f.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, pool, err := f.load()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				Certificates: []tls.Certificate{cert},
				ClientCAs:    pool,
				ClientAuth:   tls.RequireAndVerifyClientCert,
				NextProtos:   []string{"h2"},
			}, nil
		},
	}, nil
}

// Client returns the configuration of a client that shows its certificate, and accepts a server's certificate of the CA
// only. The files are read once: as Options.TLS it is called for each connection, so that they can be replaced.
func (f TLSFiles) Client() (*tls.Config, error) {
	cert, pool, err := f.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool}, nil
}
