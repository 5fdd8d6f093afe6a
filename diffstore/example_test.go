package diffstore_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/diffstore"
	"github.com/nftproxy/nftproxy/model"
)

// A backend writes everything that there should be each time, and is told what to do.
func Example() {
	store := diffstore.New[string, int]()
	apply := func() {
		for name := range store.Deleted() {
			fmt.Println("close", name)
		}
		for name, port := range store.Updated() {
			fmt.Println("open", name, port)
		}
		store.Commit()
	}

	store.Begin()
	store.Set("web", 80)
	store.Set("dns", 53)
	apply()

	store.Begin()
	store.Set("web", 8080)
	apply()
	// Output:
	// open dns 53
	// open web 80
	// close dns
	// open web 8080
}

// A dataplane that refuses something is asked for it again, and for nothing else.
func ExampleStore_Apply() {
	store := diffstore.New[string, int]()
	store.Set("web", 80)
	store.Set("dns", 53)

	busy := true
	open := func(name string, port int) error {
		if name == "web" && busy {
			return fmt.Errorf("cannot open %s: busy", name)
		}
		fmt.Println("open", name, port)
		return nil
	}
	closed := func(name string, _ int) error { return nil }

	fmt.Println("error:", store.Apply(closed, open))
	busy = false
	fmt.Println("error:", store.Apply(closed, open))
	// Output:
	// open dns 53
	// error: cannot open web: busy
	// open web 80
	// error: <nil>
}

// A backend that starts again reads what it left in the dataplane, and touches only what is different.
func ExampleStore_Adopt() {
	store := diffstore.New[string, int]()
	store.Adopt("old", 22) // what the dataplane has
	store.Adopt("web", 80)

	store.Begin()
	store.Set("web", 80)
	store.Set("dns", 53)
	for name := range store.Deleted() {
		fmt.Println("close", name)
	}
	for name, port := range store.Updated() {
		fmt.Println("open", name, port)
	}
	// Output:
	// close old
	// open dns 53
}

// Values may be of any type: here a frontend's endpoints, compared as lists.
func ExampleNewFunc() {
	store := diffstore.NewFunc(netip.AddrPort.Compare, slices.Equal[[]netip.AddrPort])
	frontend := netip.MustParseAddrPort("10.96.0.10:80")

	store.Set(frontend, []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")})
	store.Commit()
	store.Set(frontend, []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")})
	fmt.Println("changed:", store.Changed())
	store.Set(frontend, []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080"), netip.MustParseAddrPort("10.244.2.6:8080")})
	for frontend, endpoints := range store.Updated() {
		fmt.Println(frontend, endpoints)
	}
	// Output:
	// changed: false
	// 10.96.0.10:80 [10.244.1.5:8080 10.244.2.6:8080]
}

// After a reconnection everything comes again. Only what is different has to be applied.
func ExampleServicePorts() {
	web := model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}
	dns := model.PortID{Namespace: "kube-system", Service: "dns", Protocol: model.UDP, Family: model.IPv4}
	type ports = map[model.PortID]*model.ServicePort

	store := diffstore.NewServicePorts()
	store.Write(&model.Changes{Full: true, Ports: ports{web: {ID: web, Port: 80}, dns: {ID: dns, Port: 53}}})
	store.Commit()

	store.Write(&model.Changes{Full: true, Ports: ports{web: {ID: web, Port: 80}}})
	for id, port := range store.Deleted() {
		fmt.Println(id, "is gone, it had port", port.Port)
	}
	var updated []string
	for id := range store.Updated() {
		updated = append(updated, id.String())
	}
	fmt.Println("updated:", strings.Join(updated, ", "))
	// Output:
	// kube-system/dns/UDP (IPv4) is gone, it had port 53
	// updated:
}
