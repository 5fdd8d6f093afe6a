package compiler

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestFamilies(t *testing.T) {
	c, err := New(Default())
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[model.Family]nft.Family{model.IPv4: nft.FamilyIP, model.IPv6: nft.FamilyIP6} {
		t.Run(f.String()+" compiles to tables of "+want.String(), func(t *testing.T) {
			if got := c.families.get(f).program.family; got != want {
				t.Errorf("family %s, want %s", got, want)
			}
			if got := c.Tables()[familyIndex(f)].Family; got != want {
				t.Errorf("a table of family %s, want %s", got, want)
			}
		})
	}
	t.Run("no proxy's tables have the name of another's, nor of its temporary ones", func(t *testing.T) {
		longest := strings.Repeat("x", 63) // of the values of labels
		owners := map[string]string{}
		for _, proxy := range []string{"", "stand-in", "a", "a-stand-in", "stand-in.a", longest} {
			for _, name := range []string{TableNameFor(proxy), TemporaryNameFor(proxy)} {
				if other, taken := owners[name]; taken || len(name) > 255 {
					t.Errorf("%q (%d bytes) of proxy %q is that of %q", name, len(name), proxy, other)
				}
				owners[name] = proxy
			}
			c, err := New(Config{ServiceProxyName: proxy})
			if err != nil {
				t.Fatal(err)
			}
			if table, temporary := c.Tables()[0].Name, c.TemporaryTables()[0].Name; table != TableNameFor(proxy) || temporary != TemporaryNameFor(proxy) {
				t.Errorf("proxy %q has the tables %q and %q", proxy, table, temporary)
			}
		}
	})
	t.Run("with IPv4 alone there is no other table, and a Service port of IPv6 changes nothing", func(t *testing.T) {
		c, err := New(Config{IPv4Only: true})
		if err != nil {
			t.Fatal(err)
		}
		c.Transaction()
		c.Committed()
		ipv6 := map[model.PortID]*model.ServicePort{{Service: "web", Family: model.IPv6, Protocol: model.TCP}: {ClusterIP: netip.MustParseAddr("fd00::1"), Port: 80}}
		for _, full := range []bool{false, true} {
			c.Apply(&model.Changes{Ports: ipv6, Full: full, Node: &model.Node{}})
			if tx := c.Transaction(); !tx.Empty() {
				t.Errorf("full %v: it changes\n%s", full, tx)
			}
		}
		if tables := append(c.Tables(), c.TemporaryTables()...); len(tables) != 2 || tables[0].Family != nft.FamilyIP || tables[1].Family != nft.FamilyIP {
			t.Errorf("tables %v, want one of ip and its temporary one", tables)
		}
	})
	t.Run("a Service port of no family is not compiled into the tables of another", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("Apply takes a Service port without a family")
			}
		}()
		c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{{Service: "web"}: {}}})
	})
}
