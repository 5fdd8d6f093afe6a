package compiler_test

import (
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
)

// webPort is port 80 of Service shop/web with the given endpoints.
func webPort(endpoints ...string) *model.ServicePort {
	port := &model.ServicePort{
		ID:        model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: netip.MustParseAddr("10.96.0.10"),
		Port:      80,
	}
	for _, e := range endpoints {
		port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: netip.MustParseAddrPort(e)})
	}
	return port
}

// One Service port is a verdict, an element for each endpoint, and a chain that it shares
// with all others that have as many endpoints.
func Example() {
	c, err := compiler.New(compiler.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	port := webPort("10.244.1.5:8080", "10.244.2.6:8080")
	c.Apply(&model.Changes{Full: true, Ports: model.PortsByID(port)})

	table := c.Tables()[0] // IPv4
	for _, name := range []string{"service-ips", "endpoints"} {
		set := table.Set(name)
		for _, e := range set.Elements() {
			fmt.Printf("%s: %s\n", name, set.FormatElement(e))
		}
	}
	for _, rule := range table.Chain("cluster-2").Rules {
		fmt.Printf("cluster-2: %s\n", rule)
	}
	// Output:
	// service-ips: 10.96.0.10 . tcp . 80 comment "shop/web" : goto cluster-2
	// endpoints: 10.96.0.10 . tcp . 80 . 0 : 10.244.1.5 . 8080
	// endpoints: 10.96.0.10 . tcp . 80 . 1 : 10.244.2.6 . 8080
	// cluster-2: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
	// cluster-2: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 1 map @endpoints
}

// The transaction for a change holds that change only.
func ExampleCompiler_Transaction() {
	c, err := compiler.New(compiler.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	port := webPort("10.244.1.5:8080", "10.244.2.6:8080")
	c.Apply(&model.Changes{Full: true, Ports: model.PortsByID(port)})
	c.Committed() // as if the kernel had taken the first transaction

	port = webPort("10.244.1.5:8080", "10.244.2.7:8080")
	c.Apply(&model.Changes{Ports: model.PortsByID(port)})
	fmt.Print(c.Transaction())
	// Output:
	// delete element ip kube-proxy endpoints {
	// 	10.96.0.10 . tcp . 80 . 1,
	// }
	// delete element ip kube-proxy hairpin {
	// 	10.244.2.6 . 10.244.2.6,
	// }
	// add element ip kube-proxy endpoints {
	// 	10.96.0.10 . tcp . 80 . 1 : 10.244.2.7 . 8080,
	// }
	// add element ip kube-proxy hairpin {
	// 	10.244.2.7 . 10.244.2.7,
	// }
}
