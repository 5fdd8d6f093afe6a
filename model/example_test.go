package model_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nftproxy/nftproxy/model"
)

// A loop merges what its backend did not apply with what came since: the later change counts.
func ExampleChanges_Merge() {
	web := model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}
	dns := model.PortID{Namespace: "kube-system", Service: "dns", Port: "dns", Protocol: model.UDP, Family: model.IPv4}

	pending := &model.Changes{Ports: map[model.PortID]*model.ServicePort{web: {ID: web, Port: 80}}}
	pending.Merge(&model.Changes{Ports: map[model.PortID]*model.ServicePort{
		web: {ID: web, Port: 8080},
		dns: nil, // gone
	}})

	fmt.Println(web, "has port", pending.Ports[web].Port)
	fmt.Println(dns, "is gone:", pending.Ports[dns] == nil)
	// Output:
	// shop/web/TCP (IPv4) has port 8080
	// kube-system/dns:dns/UDP (IPv4) is gone: true
}

// A backend writes everything that there should be each time, and is told what to do.
func ExampleDiffStore() {
	store := model.NewDiffStore[string, int]()
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
func ExampleDiffStore_Apply() {
	store := model.NewDiffStore[string, int]()
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
func ExampleDiffStore_Adopt() {
	store := model.NewDiffStore[string, int]()
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
func ExampleNewDiffStoreFunc() {
	store := model.NewDiffStoreFunc(netip.AddrPort.Compare, slices.Equal[[]netip.AddrPort])
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
func ExamplePortStore() {
	web := model.PortID{Namespace: "shop", Service: "web", Protocol: model.TCP, Family: model.IPv4}
	dns := model.PortID{Namespace: "kube-system", Service: "dns", Protocol: model.UDP, Family: model.IPv4}
	type ports = map[model.PortID]*model.ServicePort

	store := model.NewPortStore()
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

// A dataplane that takes its whole configuration at once gets everything each time.
func ExampleFullState() {
	backend := model.FullState(func(_ context.Context, all *model.Changes) error {
		fmt.Println("configure", len(all.Ports), "ports")
		return nil
	})
	web, dns := model.PortID{Service: "web"}, model.PortID{Service: "dns"}
	_ = backend.Sync(context.Background(), &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{web: {ID: web}}})
	_ = backend.Sync(context.Background(), &model.Changes{Ports: map[model.PortID]*model.ServicePort{dns: {ID: dns}}})
	// Output:
	// configure 1 ports
	// configure 2 ports
}
