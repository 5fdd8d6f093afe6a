package apiservertest

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// connections are those that a listener accepted and nobody closed yet.
type connections struct {
	mu   sync.Mutex
	open map[*connection]struct{}
	// sent counts the bytes that were written.
	sent *atomic.Int64
}

func (c *connections) closeAll() {
	c.mu.Lock()
	open := c.open
	c.open = map[*connection]struct{}{}
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Conn.Close()
	}
}

type connection struct {
	net.Conn
	owner *connections
}

func (c *connection) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.owner.sent.Add(int64(n))
	return n, err
}

func (c *connection) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// listener remembers what it accepted, so that it can be cut.
type listener struct {
	net.Listener
	*connections
}

// listen counts in sent what is written to connections. A client that dials while nobody listens can get the very port
// for its own side, for a moment.
func listen(address string, sent *atomic.Int64) (*listener, error) {
	l, err := net.Listen("tcp", address)
	for until := time.Now().Add(10 * time.Second); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(until); l, err = net.Listen("tcp", address) {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	return &listener{l, &connections{open: map[*connection]struct{}{}, sent: sent}}, nil
}

func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{raw, l.connections}
	l.mu.Lock()
	l.open[conn] = struct{}{}
	l.mu.Unlock()
	return conn, nil
}

// writeKubeconfig writes a kubeconfig with one cluster and one user; clientcmd writes it with
// mode 0600, since it holds a token.
func writeKubeconfig(path, url string, authority []byte, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server: url, CertificateAuthorityData: authority, TLSServerName: serverName,
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}
