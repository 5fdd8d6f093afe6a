package compiler

import (
	"testing"

	"github.com/nftproxy/nftproxy/model"
)

// Names that Kubernetes does not allow come from manifests. Two Service ports with one name would share their clients,
// and send them to each other's endpoints.
func TestAffinityName(t *testing.T) {
	named := map[string]model.PortID{}
	for _, id := range []model.PortID{
		{Namespace: "a", Service: "b"},
		{Namespace: "a", Service: "b", Port: "c"},
		{Namespace: "a", Service: "b", Protocol: model.UDP},
		{Namespace: "a.b", Service: "c"},
		{Namespace: "a", Service: "b.c"},
		{Namespace: "a", Service: "b.tcp", Port: "c"},
		{Namespace: "a", Service: "b", Port: "tcp.c"},
		{Namespace: "a", Service: "b", Port: "c d"},
		{Namespace: "", Service: "a.b"},
	} {
		name := affinityName(id)
		if other, taken := named[name]; taken {
			t.Errorf("%q and %q are both called %s", id, other, name)
		}
		named[name] = id
	}
}
