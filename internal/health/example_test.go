package health_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/model"
)

// A proxy is ready when a Sync has succeeded, and no change waits for longer than the timeout.
func ExampleProxy() {
	proxy := health.NewProxy(health.Options{})
	ask := func() int {
		answer := httptest.NewRecorder()
		proxy.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/healthz", nil))
		return answer.Code
	}
	proxy.Queued() // a change came
	fmt.Println("before the first Sync:", ask())
	proxy.Synced() // the backend has applied it
	fmt.Println("after it:", ask())
	// Output:
	// before the first Sync: 503
	// after it: 200
}

// Load balancers find nodes with endpoints of a Service by its healthCheckNodePort. Apply is to be called after each Sync.
func ExampleServices() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	services := health.NewServices(health.ServicesOptions{
		Ready: func() bool { return true }, // (*health.Proxy).Ready
		CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
	})
	id := model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}
	port := &model.ServicePort{
		ID: id, ExternalPolicy: model.PolicyLocal, HealthCheckNodePort: unusedPort(),
		Local: []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
	}
	services.Apply(ctx, &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{id: port}})

	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port.HealthCheckNodePort))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode, err)
	fmt.Println(string(body))
	// Output:
	// 200 <nil>
	// {
	// 	"service": {
	// 		"namespace": "shop",
	// 		"name": "web"
	// 	},
	// 	"localEndpoints": 1,
	// 	"serviceProxyHealthy": true
	// }
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
