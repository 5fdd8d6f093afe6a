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
	"time"
)

// serverName is what the certificate is made out to. A kubeconfig names it too, so the server can
// listen on any address, also one in another network namespace.
const serverName = "apiserver.test"

// certificate is a server's or a client's, with its key.
type certificate struct {
	pair            tls.Certificate
	certPEM, keyPEM []byte

	parsed *x509.Certificate
	key    *ecdsa.PrivateKey
}

// aDay is longer than any test runs.
const aDay = 24 * time.Hour

// newCertificate returns one that is valid until the given time, signed by authority or, if that is nil, by itself.
func newCertificate(authority *certificate, until time.Time) (certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: serverName},
		DNSNames:              []string{serverName, "localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:             until.Add(-2 * aDay),
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  authority == nil,
	}
	parent, parentKey := template, key
	if authority != nil {
		template.SerialNumber, template.KeyUsage = big.NewInt(2), x509.KeyUsageDigitalSignature
		parent, parentKey = authority.parsed, authority.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return certificate{}, err
	}
	c := certificate{
		key:     key,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
	if c.parsed, err = x509.ParseCertificate(der); err != nil {
		return certificate{}, err
	}
	c.pair, err = tls.X509KeyPair(c.certPEM, c.keyPEM)
	return c, err
}

// newToken returns a bearer token that nobody can guess.
func newToken() string { return rand.Text() }
