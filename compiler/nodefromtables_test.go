package compiler_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestNodeFromTables(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	dual := []netip.Addr{addr("192.168.0.1"), addr("fd00:1::1")}
	pods := []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")}
	nodeCIDR := compiler.Default()
	nodeCIDR.DetectLocal.NodePodCIDRs = true
	byCIDR := compiler.Default()
	byCIDR.NodePortAddresses.CIDRs = []netip.Prefix{prefix("172.16.0.0/12"), prefix("fd00:1::/64")}
	nowhere := compiler.Default()
	nowhere.NodePortAddresses.Primary = false
	for name, test := range map[string]struct {
		config compiler.Config
		node   model.Node
		want   model.Node
	}{
		"addresses of both families":             {compiler.Default(), model.Node{IPs: dual}, model.Node{IPs: dual}},
		"pod CIDRs under NodeCIDR":               {nodeCIDR, model.Node{IPs: dual, PodCIDRs: pods}, model.Node{IPs: dual, PodCIDRs: pods}},
		"a Node that had nothing":                {nodeCIDR, model.Node{}, model.Node{}},
		"an address within a configured CIDR":    {byCIDR, model.Node{IPs: dual}, model.Node{IPs: dual[:1]}},
		"an address on which node ports are not": {nowhere, model.Node{IPs: dual}, model.Node{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := compiler.New(test.config)
			if err != nil {
				t.Fatal(err)
			}
			c.Apply(&model.Changes{Full: true, Node: &test.node})
			got := compiler.NodeFromTables(c.Tables()...)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("from tables (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("kube-proxy's own table", func(t *testing.T) {
		ips := &nft.Set{Name: "nodeport-ips", Key: nft.Concat{nft.FamilyIP6.Daddr()}}
		ips.Put(nft.Element{Key: nft.AddrData(addr("fd00:1::1"))})
		got := compiler.NodeFromTables(nil, &nft.Table{Family: nft.FamilyIP6, Name: "kube-proxy", Sets: []*nft.Set{ips}})
		if diff := cmp.Diff(model.Node{IPs: dual[1:]}, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("from tables (-want +got):\n%s", diff)
		}
	})
}
