package compiler

import (
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
			if got := c.families.of(f).family; got != want {
				t.Errorf("family %s, want %s", got, want)
			}
			if got := c.Tables()[familyIndex(f)].Family; got != want {
				t.Errorf("a table of family %s, want %s", got, want)
			}
		})
	}
	t.Run("a Service port of no family is not compiled into the tables of another", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("Apply takes a Service port without a family")
			}
		}()
		c.Apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{{Service: "web"}: {}}})
	})
}
