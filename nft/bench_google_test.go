//go:build !386 && !arm

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// The elements of BenchmarkEncodeElements, encoded by google/nftables, which does not compile for 32 bits.
func BenchmarkEncodeElementsGoogle(b *testing.B) {
	b.ReportAllocs()
	elements := manyServices(20_000).Sets[0].Elements()
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kube-proxy"}
	google := &nftables.Set{Table: table, Name: "service-ips", ID: 1, IsMap: true, DataType: nftables.TypeVerdict,
		KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)}
	for b.Loop() {
		conn, err := nftables.New(nftables.WithTestDial(func([]netlink.Message) ([]netlink.Message, error) { return nil, nil }))
		if err != nil {
			b.Fatal(err)
		}
		list := make([]nftables.SetElement, 0, len(elements))
		for _, e := range elements {
			list = append(list, nftables.SetElement{Key: []byte(e.Key), Comment: e.Comment,
				VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Verdict.Chain}})
		}
		if err := conn.SetAddElements(google, list); err != nil {
			b.Fatal(err)
		}
	}
}
