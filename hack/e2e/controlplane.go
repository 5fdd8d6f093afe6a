package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	apiServerPort = "6443"
	patience      = 5 * time.Minute
)

// user is a user of the API server, with a token.
type user struct{ file, name, group string }

func (c *cluster) users() []user {
	all := []user{
		{"admin", "admin", "system:masters"},
		{"kube-controller-manager", "system:kube-controller-manager", ""},
		{"kube-scheduler", "system:kube-scheduler", ""},
		{"kube-proxy", "system:kube-proxy", ""},
	}
	for _, n := range c.Nodes {
		all = append(all, user{n.Name, "system:node:" + n.Name, "system:nodes"})
	}
	return all
}

func (c *cluster) kubeconfig(user string) string {
	return filepath.Join(c.dir, "credentials", user+".kubeconfig")
}

func (c *cluster) credential(name string) string { return filepath.Join(c.dir, "credentials", name) }

// server is the address of the API server, from everywhere in the machine.
func (c *cluster) server() string {
	return "https://" + net.JoinHostPort(machineAddrs[0].Addr().String(), apiServerPort)
}

// writeCredentials makes a certificate, tokens, and a kubeconfig for each user.
func (c *cluster) writeCredentials() error {
	if err := os.MkdirAll(filepath.Join(c.dir, "credentials"), 0o700); err != nil {
		return err
	}
	certificate, err := c.writeCertificate()
	if err != nil {
		return err
	}
	var tokens strings.Builder
	for _, u := range c.users() {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,%s\n", token, u.name, u.name, u.group)
		config := clientcmdapi.NewConfig()
		config.Clusters["e2e"] = &clientcmdapi.Cluster{Server: c.server(), CertificateAuthorityData: certificate}
		config.AuthInfos["e2e"] = &clientcmdapi.AuthInfo{Token: token}
		config.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}
		config.CurrentContext = "e2e"
		if err := clientcmd.WriteToFile(*config, c.kubeconfig(u.file)); err != nil {
			return err
		}
	}
	return os.WriteFile(c.credential("tokens.csv"), []byte(tokens.String()), 0o600)
}

// writeCertificate makes the API server's certificate, which signs itself. Its key signs service accounts' tokens too.
func (c *cluster) writeCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "e2e"},
		DNSNames:  []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	for _, ip := range append([]string{"127.0.0.1", "::1", machineAddrs[0].Addr().String(), machineAddrs[1].Addr().String()}, kubernetesIPs...) {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certificate, errors.Join(
		os.WriteFile(c.credential("tls.crt"), certificate, 0o600),
		os.WriteFile(c.credential("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}

// startControlPlane starts etcd, the API server, the scheduler and the controllers, beside the nodes.
func (c *cluster) startControlPlane(ctx context.Context) error {
	if err := c.writeCredentials(); err != nil {
		return err
	}
	certificate, key := c.credential("tls.crt"), c.credential("tls.key")
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, cmd := range [][]string{
		{"etcd", "--name=e2e", "--data-dir=" + filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn"},
		{
			"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=" + apiServerPort,
			"--bind-address=::", "--advertise-address=" + machineAddrs[0].Addr().String(),
			"--tls-cert-file=" + certificate, "--tls-private-key-file=" + key, "--cert-dir=" + c.dir,
			"--token-auth-file=" + c.credential("tokens.csv"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file=" + certificate, "--service-account-signing-key-file=" + key,
			"--service-cluster-ip-range=" + serviceRanges, "--allow-privileged",
			"--kubelet-preferred-address-types=InternalIP",
		},
	} {
		if _, err := c.machine().background(c.logs(), c.program(cmd[0], cmd[1:]...)); err != nil {
			return err
		}
	}
	if err := await(ctx, "the API server is ready", func() error {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	for _, cmd := range [][]string{
		{
			"kube-controller-manager", "--kubeconfig=" + c.kubeconfig("kube-controller-manager"), "--use-service-account-credentials",
			"--service-account-private-key-file=" + key, "--root-ca-file=" + certificate, "--bind-address=127.0.0.1",
			"--leader-elect=false", "--allocate-node-cidrs=false",
			// So soon as in clusters of this size.
			"--node-monitor-grace-period=60s",
		},
		{"kube-scheduler", "--kubeconfig=" + c.kubeconfig("kube-scheduler"), "--leader-elect=false", "--bind-address=127.0.0.1"},
	} {
		if _, err := c.machine().background(c.logs(), c.program(cmd[0], cmd[1:]...)); err != nil {
			return err
		}
	}
	return nil
}

// config reaches the API server from this machine, through the namespaces.
func (c *cluster) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig("admin"))
	if err != nil {
		return nil, err
	}
	config.Dial, config.QPS, config.Burst = c.machine().dial, 50, 100
	config.Proxy = http.ProxyURL(nil)
	return config, nil
}

func (c *cluster) client() (*kubernetes.Clientset, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// errEnded is the error of a check that waits for a program in vain.
var errEnded = errors.New("the program has ended; its log says why")

// await waits until the check holds.
func await(ctx context.Context, what string, check func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if errors.Is(err, errEnded) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: still not after %v: %w", what, patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}
