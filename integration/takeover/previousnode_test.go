package takeover

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// A Node may have no addresses just when its kube-proxy is swapped. Where node ports answer is then
// taken from the rules that kube-proxy left.
func testNodeAddressesAreReadFromKubeProxysTables(t *testing.T) {
	l := lab.ForTest(t)
	ruleset, err := os.ReadFile("testdata/ruleset.nft")
	if err != nil {
		t.Fatal(err)
	}
	lab.Nft(t, l.Node, string(ruleset), "-f", "-")
	conn := lab.Conn(t, l.Node)
	if has, err := proxy.HasServices(t.Context(), conn); err != nil || !has {
		t.Errorf("kube-proxy's tables have Services: %v, %v", has, err)
	}
	if has, err := proxy.HasEndpoints(t.Context(), conn); err != nil || !has {
		t.Errorf("kube-proxy's tables have endpoints: %v, %v", has, err)
	}
	var tables []*nft.Table
	for _, family := range nft.Families {
		table, err := conn.ReadTable(t.Context(), family, compiler.TableName)
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	got := compiler.NodeFromTables(tables...)
	want := []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:1::1")}
	if !slices.Equal(got.IPs, want) || len(got.PodCIDRs) > 0 {
		t.Errorf("addresses %v and pod CIDRs %v, want %v and none", got.IPs, got.PodCIDRs, want)
	}
}
