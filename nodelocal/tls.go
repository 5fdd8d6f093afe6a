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

func (f TLSFiles) check() error {
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return errors.New("TLS needs a certificate, its key, and the CA of the other side")
	}
	return nil
}

func (f TLSFiles) load() (cert tls.Certificate, err error) {
	if cert, err = tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		return cert, fmt.Errorf("certificate %s, key %s: %w", f.Cert, f.Key, err)
	}
	return cert, nil
}

func (f TLSFiles) pool() (*x509.CertPool, error) {
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA %s: no certificate in it", f.CA)
	}
	return pool, nil
}

// Server returns the configuration of a server that demands a certificate of the CA from each client. It reads the
// files again for each connection, so they can be replaced.
func (f TLSFiles) Server() (*tls.Config, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if _, err := f.load(); err != nil {
		return nil, err
	}
	if _, err := f.pool(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, err := f.load()
			if err != nil {
				return nil, err
			}
			pool, err := f.pool()
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
	if err := f.check(); err != nil {
		return nil, err
	}
	cert, err := f.load()
	if err != nil {
		return nil, err
	}
	pool, err := f.pool()
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool}, nil
}
