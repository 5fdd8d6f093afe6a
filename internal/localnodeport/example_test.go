package localnodeport_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/localnodeport"
	"github.com/nftproxy/nftproxy/model"
)

// Loopback is served only where nodePortAddresses asks for it.
func ExampleAddresses() {
	fmt.Println(localnodeport.Addresses([]netip.Prefix{
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
	}))
	fmt.Println(localnodeport.Addresses([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}))
	// Output:
	// [127.0.0.1 ::1]
	// []
}

// A program on the node dials a node port on loopback. Apply is to be called after each Sync.
func ExampleForwarder() {
	endpoint, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer endpoint.Close()
	go func() {
		for conn, err := endpoint.Accept(); err == nil; conn, err = endpoint.Accept() {
			fmt.Fprint(conn, "hello from the endpoint")
			conn.Close()
		}
	}()

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	forwarder := localnodeport.New(localnodeport.Options{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	id := model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}
	port := &model.ServicePort{
		ID: id, NodePort: unusedPort(),
		Cluster: []model.Endpoint{{AddrPort: netip.MustParseAddrPort(endpoint.Addr().String())}},
	}
	forwarder.Apply(ctx, &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{id: port}})

	client, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port.NodePort))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	text, err := io.ReadAll(client)
	fmt.Println(string(text), err)
	// Output:
	// hello from the endpoint <nil>
}

// unusedPort returns a TCP port that nobody listens on.
func unusedPort() uint16 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}
