package model_test

import (
	"fmt"

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
