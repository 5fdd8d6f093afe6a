package apiservertest

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
	"net/url"
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
func NewAuthority(name string, until time.Time) (*Certificate, error) {
	return issue(nil, named(name), until)
}

// Issue returns a certificate that is valid from two days before until.
func (c *Certificate) Issue(name string, until time.Time) (*Certificate, error) {
	return issue(c, named(name), until)
}

// IssueURI is Issue for a certificate with a URI instead of a name.
func (c *Certificate) IssueURI(uri string, until time.Time) (*Certificate, error) {
	parsed, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	return issue(c, x509.Certificate{URIs: []*url.URL{parsed}}, until)
}

func named(name string) x509.Certificate {
	return x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "localhost"}}
}

// issue returns a certificate for the subject, of which it completes the rest.
func issue(authority *Certificate, subject x509.Certificate, until time.Time) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               subject.Subject,
		DNSNames:              subject.DNSNames,
		URIs:                  subject.URIs,
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
