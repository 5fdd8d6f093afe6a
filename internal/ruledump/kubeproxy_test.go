package ruledump

import (
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

// The kernel refuses chains that lead in a circle, and a dump may have them.
func TestKubeProxysTablesOfADump(t *testing.T) {
	key, port := nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport}, nft.ProtoData(6)+nft.PortData(80)
	services := &nft.Set{Name: compiler.ServiceIPs, Key: key, Verdicts: true}
	services.Put(nft.Element{Key: "\x0a\x00\x00\x01" + port, Verdict: nft.Goto("endpoint-a")})
	circle := &nft.Set{Name: "circle", Key: nft.Concat{nft.Numgen{Mod: 1}}, Verdicts: true}
	circle.Put(nft.Element{Key: nft.IntegerData(0), Verdict: nft.Goto("endpoint-a")})
	read := writeAndRead(t, &Snapshot{Tables: []*nft.Table{{Family: nft.FamilyIP, Name: compiler.TableName,
		Sets: []*nft.Set{services, circle},
		Chains: []*nft.Chain{{Name: "service-endpoints-check"}, {Name: "endpoint-a", Rules: []nft.Rule{
			{Comment: "no statement"},
			{Statements: []nft.Statement{nft.Vmap{Key: circle.Key, Map: circle.Name}}},
		}}},
	}}})
	if !read.KubeProxys() {
		t.Fatal("the table is not taken for one of kube-proxy")
	}
	frontends, err := read.Frontends()
	if err != nil || len(frontends) != 1 || len(frontends[0].Endpoints) != 0 {
		t.Errorf("frontends %v, error %v", frontends, err)
	}
}
