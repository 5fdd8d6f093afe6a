package compiler

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
)

func TestHairpin(t *testing.T) {
	list := endpoints("10.244.0.1:8080", "10.244.0.2:8080", "10.244.0.3:8080")
	list[0].Local, list[2].Remote = true, true
	here := []string{"hairpin: 10.244.0.1 . 10.244.0.1", "hairpin: 10.244.0.2 . 10.244.0.2"}
	all := append(here[:2:2], "hairpin: 10.244.0.3 . 10.244.0.3")
	with := func(policy model.TrafficPolicy) *model.Changes {
		return portsOf(claimant("web", 1, func(p *model.ServicePort) {
			p.Cluster, p.Local, p.NodePort, p.ExternalPolicy = list, list[:1], 30080, policy
		}))
	}
	other := portsOf(claimant("other", 2, func(p *model.ServicePort) { p.Cluster, p.ExternalPolicy = list[2:], model.PolicyLocal }))
	otherGone := &model.Changes{Ports: map[model.PortID]*model.ServicePort{webID("other"): nil}}
	c := newCompiler(t)
	for _, step := range []struct {
		name   string
		change *model.Changes
		want   []string
	}{
		{"holds the endpoints that may be on this node", with(model.PolicyCluster), here},
		{"holds all endpoints under policy Local", with(model.PolicyLocal), all},
		{"does not under policy Cluster again", with(model.PolicyCluster), here},
		{"holds an endpoint that another Service's policy needs there", other, all},
		{"does no longer when that Service is gone", otherGone, here},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.Apply(step.change)
			if diff := cmp.Diff(step.want, elementsOf(c, "hairpin")); diff != "" {
				t.Errorf("elements (-want +got):\n%s", diff)
			}
		})
	}
}
