package integration

import (
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/random"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// affinityTimeout is longer than any test runs.
const affinityTimeout = 3 * time.Hour

// generator draws the choices that a model is made of.
type generator struct {
	*rapid.T
	random.Choose
}

func newGenerator(t *rapid.T) generator {
	return generator{t, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }}
}

func (d generator) config() compiler.Config {
	c := compiler.Default()
	c.MasqueradeBit = uint8(d.Choose(32))
	c.MasqueradeAll = d.Maybe(5)
	c.AffinityHash = d.Maybe(3)
	c.CountServices, c.CountRefused = d.Maybe(3), d.Maybe(3)
	c.NodePortAddresses.Primary = !d.Maybe(3)
	for _, p := range random.Places {
		c.NodePortAddresses.CIDRs = append(c.NodePortAddresses.CIDRs, random.Some(d.Choose, p.NodePortRanges, 1, netip.Prefix.Compare)...)
		c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, random.Some(d.Choose, p.PodRanges, 1, netip.Prefix.Compare)...)
	}
	c.DetectLocal.NodePodCIDRs = d.Maybe(4)
	if d.Maybe(4) {
		c.DetectLocal.Interface = random.One(d.Choose, []string{"veth*", "eth0"})
	}
	return c
}

// model draws a whole model, by way of Kubernetes' objects.
func (d generator) model() *model.Changes {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lab.NodeName, Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}}}
	for i, p := range random.Places {
		if !d.Maybe(6) {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: lab.NodeAddrs.Like(p.Unassigned).String()})
			node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, lab.LocalPodNetworks[i].String())
		}
	}
	objects := d.Objects(random.Places)
	objects.Nodes = append(objects.Nodes, node)
	t := tracker.New(tracker.Options{NodeName: lab.NodeName})
	objects.Feed(t)
	return t.Changes()
}
