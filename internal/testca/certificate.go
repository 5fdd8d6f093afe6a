// Package testca issues certificates for tests.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Certificate is a certificate with its key, for servers and clients on this machine.
type Certificate struct {
	*x509.Certificate
	key    *ecdsa.PrivateKey
	keyDER []byte // PKCS #8
}

// NewAuthority returns a certificate that its own key has signed, and whose key signs others. It is valid from two days
// before until.
func NewAuthority(name string, until time.Time) (*Certificate, error) { return issue(nil, name, until) }

// Issue returns a certificate that is valid from two days before until.
func (c *Certificate) Issue(name string, until time.Time) (*Certificate, error) {
	return issue(c, name, until)
}

func issue(authority *Certificate, name string, until time.Time) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name, "localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:             until.Add(-48 * time.Hour),
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  authority == nil,
	}
	parent, parentKey := template, key
	if authority != nil {
		template.SerialNumber, template.KeyUsage = big.NewInt(2), x509.KeyUsageDigitalSignature
		parent, parentKey = authority.Certificate, authority.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, err
	}
	c := &Certificate{key: key}
	if c.keyDER, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, err
	}
	c.Certificate, err = x509.ParseCertificate(der)
	return c, err
}

// TLS returns the certificate for a tls.Config.
func (c *Certificate) TLS() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: c.key, Leaf: c.Certificate}
}

// CertPEM returns the certificate in PEM.
func (c *Certificate) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// KeyPEM returns the key in PEM.
func (c *Certificate) KeyPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: c.keyDER})
}
