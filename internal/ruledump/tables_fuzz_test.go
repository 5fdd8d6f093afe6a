package ruledump

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// FuzzTables shows that no tables make those fall over who read meaning into them: the proxy at its start, and ruledump.
// Another process can put anything into tables of the proxy's name, and anything can be in a dump.
func FuzzTables(f *testing.F) {
	var b bytes.Buffer
	if err := writeDump(&b, document{Origin: "kernel"}, compiled(f), nil); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		_, tables, _, err := readDump(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, ip := range compiler.NodeFromTables(tables...).IPs {
			if !ip.IsValid() {
				t.Errorf("the node has the address %v", ip)
			}
		}
		for _, table := range tables {
			frontends, err := compiler.Read(table)
			if err != nil && len(frontends) > 0 {
				t.Errorf("%d frontends with the error %v", len(frontends), err)
			}
			if tx := nft.Diff(nil, table); !strings.HasPrefix(tx.String(), "add table ") {
				t.Errorf("a table is made by\n%s", tx)
			}
			if tx := nft.Diff(table, table); !tx.Empty() {
				t.Errorf("a table differs from itself by\n%s", tx)
			}
		}
	})
}

// compiled returns the tables of a node with one Service port that has all kinds of frontends.
func compiled(tb testing.TB) []*nft.Table {
	tb.Helper()
	c, err := compiler.New(compiler.Default())
	if err != nil {
		tb.Fatal(err)
	}
	id := model.PortID{Namespace: "default", Service: "web", Family: model.IPv4, Protocol: model.TCP}
	c.Apply(&model.Changes{
		Full: true,
		Node: &model.Node{IPs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}},
		Ports: map[model.PortID]*model.ServicePort{id: {
			ID: id, ClusterIP: netip.MustParseAddr("10.96.0.10"), Port: 80, NodePort: 30080,
			LoadBalancerIPs:          []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			LoadBalancerSourceRanges: []netip.Prefix{mustPrefix("198.51.100.0/24")},
			Cluster:                  []model.Endpoint{{AddrPort: netip.MustParseAddrPort("10.244.1.5:8080"), Local: true}},
		}},
	})
	return c.Tables()
}
