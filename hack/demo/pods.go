package main

import (
	"embed"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// pod is an endpoint of the demo's Services.
type pod struct {
	name, node string
	// addrs is its IPv4 and its IPv6 address.
	addrs [2]netip.Addr
}

func newPod(name, node, ipv4, ipv6 string) pod {
	return pod{name, node, [2]netip.Addr{netip.MustParseAddr(ipv4), netip.MustParseAddr(ipv6)}}
}

// pods are those that the manifests name.
var pods = []pod{
	newPod("web-1", lab.NodeName, "10.244.1.11", "fd00:10:244:1::11"),
	newPod("web-2", lab.NodeName, "10.244.1.12", "fd00:10:244:1::12"),
	newPod("web-3", lab.RemoteName, "10.244.2.11", "fd00:10:244:2::11"),
	newPod("web-4", lab.RemoteName, "10.244.2.12", "fd00:10:244:2::12"),
}

// oldPod gives way to newcomer while connections run.
var (
	oldPod   = pods[1]
	newcomer = newPod("web-5", lab.NodeName, "10.244.1.13", "fd00:10:244:1::13")
)

func (p pod) has(addr netip.Addr) bool { return p.addrs[0] == addr || p.addrs[1] == addr }

// start adds the pod to the lab and has it serve.
func (p pod) start(l *lab.Lab) (*server, error) {
	host := l.Remote
	if p.node == lab.NodeName {
		var err error
		if host, err = l.AddPod(p.name, p.addrs[:]...); err != nil {
			return nil, err
		}
		return serve(host, p.addrs[:])
	}
	for _, addr := range p.addrs {
		if err := l.AddRemoteAddr(addr); err != nil {
			return nil, err
		}
	}
	return serve(host, p.addrs[:])
}

//go:embed manifests/*.yaml
var embedded embed.FS

// shopFile holds the Services with endpoints. The demo changes this file.
const shopFile = "shop.yaml"

// writeManifests puts the embedded manifests into dir.
func writeManifests(dir string) error {
	entries, err := embedded.ReadDir("manifests")
	if err != nil {
		return err
	}
	for _, e := range entries {
		text, err := embedded.ReadFile("manifests/" + e.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stageReplacement writes manifests in which one pod takes the place of another, under a
// hidden name that nobody reads. Calling the result renames them into place.
func stageReplacement(dir string, r replacement) (func() error, error) {
	path := filepath.Join(dir, shopFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var pairs []string
	for i, addr := range r.removed.addrs {
		pairs = append(pairs, addr.String(), r.added.addrs[i].String())
	}
	staged := filepath.Join(dir, "."+shopFile)
	if err := os.WriteFile(staged, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.Rename(staged, path) }, nil
}

// The ports that every pod serves, as the manifests have them.
const (
	webPort = 8080
	logPort = 5140
)

// server serves in a pod. It tells every client the address that the client reached and the
// client's address, and then echoes.
type server struct {
	host    *lab.Host
	sockets []io.Closer
}

func serve(host *lab.Host, addrs []netip.Addr) (*server, error) {
	s := &server{host: host}
	for _, addr := range addrs {
		if err := s.listen(addr); err != nil {
			s.close()
			return nil, fmt.Errorf("pod %s: %w", host.Name, err)
		}
	}
	return s, nil
}

func (s *server) listen(addr netip.Addr) error {
	web, err := s.host.ServeTCP(netip.AddrPortFrom(addr, webPort).String(), func(conn net.Conn) {
		fmt.Fprintln(conn, conn.LocalAddr(), conn.RemoteAddr())
		// It ends when the client goes, which is no error worth telling.
		_, _ = io.Copy(conn, conn)
	})
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, web)
	at := netip.AddrPortFrom(addr, logPort)
	log, err := s.host.AnswerUDP(at, func(_ []byte, from netip.AddrPort) []byte { return fmt.Appendln(nil, at, from) })
	if err != nil {
		return err
	}
	s.sockets = append(s.sockets, log)
	return nil
}

func (s *server) close() {
	for _, socket := range s.sockets {
		socket.Close()
	}
}
