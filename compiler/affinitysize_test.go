package compiler

import (
	"fmt"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

func TestAffinitySize(t *testing.T) {
	port := func(i int) *model.ServicePort {
		p := numbered(i, model.IPv4)
		p.AffinityTimeout = time.Hour
		return p
	}
	c := newCompiler(t)
	// kernel is the size that the kernel has for each map: that of the step that added it.
	kernel := map[string]uint32{}
	apply := func(changes *model.Changes) {
		c.Apply(changes)
		for _, s := range c.Transaction().Steps {
			switch {
			case s.Op == nft.AddSet && s.Set.Dynamic:
				kernel[s.Set.Name] = s.Set.Size
			case s.Op == nft.DeleteSet:
				delete(kernel, s.Set.Name)
			case s.Op == nft.AddTable && c.families[0].draft.HasCommitted():
				t.Error("the table is replaced, and all clients with it")
			}
		}
		c.Committed()
	}
	apply(&model.Changes{Full: true})
	const most = 600
	for i := range most {
		p := port(i)
		apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{p.ID: p}})
	}
	for i := range most / 2 { // those that have the largest maps go, and others come
		old, p := port(i), port(most+i)
		apply(&model.Changes{Ports: map[model.PortID]*model.ServicePort{old.ID: nil, p.ID: p}})
	}
	if len(kernel) != most {
		t.Fatalf("%d maps, want %d", len(kernel), most)
	}
	for _, tc := range []struct{ size, most int }{{nft.DefaultSize, 64}, {1<<14 - 1, 512}} {
		t.Run(fmt.Sprintf("at most %d maps have %d elements or more", tc.most, tc.size), func(t *testing.T) {
			n := 0
			for _, size := range kernel {
				if int(size) >= tc.size {
					n++
				}
			}
			if n > tc.most {
				t.Errorf("%d have", n)
			}
		})
	}
	t.Run("compiled at once, all have the size for their number", func(t *testing.T) {
		all := &model.Changes{Full: true, Ports: map[model.PortID]*model.ServicePort{}}
		for i := range 100 {
			p := port(i)
			all.Ports[p.ID] = p
		}
		atOnce := newCompiler(t)
		atOnce.Apply(all)
		for _, s := range atOnce.Tables()[0].Sets {
			if s.Dynamic && s.Size != 1<<14-1 {
				t.Errorf("%s has size %d", s.Name, s.Size)
			}
		}
	})
}
