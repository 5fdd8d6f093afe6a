package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/nft"
)

// countElement is an element of a reading.
type countElement struct {
	key, port string
	packets   uint64
}

// take does one reading of a set, in which each packet has 100 bytes.
func (t *countTotals) take(set string, whole bool, elements ...countElement) {
	r := countReading{}
	for _, e := range elements {
		r.add(set, nft.Element{Key: nft.Data(e.key), Comment: e.port}, nft.Count{Packets: e.packets, Bytes: 100 * e.packets})
	}
	t.addReading(countSet{nft.FamilyIP, "kube-proxy", set}, r, whole)
}

func (t *countTotals) all() map[string][2]uint64 {
	out := map[string][2]uint64{}
	t.each(func(n ServiceCount) { out[n.ServicePort] = [2]uint64{n.Connections, n.Bytes} })
	return out
}

func TestCountTotals(t *testing.T) {
	const connections, traffic = "service-connections", "service-traffic"
	for _, tt := range []struct {
		name string
		read func(*countTotals)
		want map[string][2]uint64
	}{
		{"what was counted before the first reading does not count", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 7})
		}, map[string][2]uint64{}},
		{"what comes on top does", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 7})
			c.take(connections, true, countElement{"a", "shop/web", 9})
			c.take(traffic, true, countElement{"a", "shop/web", 1})
			c.take(traffic, true, countElement{"a", "shop/web", 5})
		}, map[string][2]uint64{"shop/web": {2, 400}}},
		{"an element that comes later counts in full", func(c *countTotals) {
			c.take(connections, true)
			c.take(connections, true, countElement{"a", "shop/web", 7})
		}, map[string][2]uint64{"shop/web": {7, 0}}},
		{"but not while no reading was whole", func(c *countTotals) {
			c.take(connections, false)
			c.take(connections, false, countElement{"a", "shop/web", 7})
			c.take(connections, false, countElement{"a", "shop/web", 8})
		}, map[string][2]uint64{"shop/web": {1, 0}}},
		{"a counter that begins anew counts on top", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 0})
			c.take(connections, true, countElement{"a", "shop/web", 9})
			c.take(connections, true, countElement{"a", "shop/web", 4})
		}, map[string][2]uint64{"shop/web": {13, 0}}},
		{"the frontends of a port add up", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 0}, countElement{"b", "shop/web", 0})
			c.take(connections, true, countElement{"a", "shop/web", 1}, countElement{"b", "shop/web", 2})
			c.take("nodeport-connections", true, countElement{"c", "shop/web", 0})
			c.take("nodeport-connections", true, countElement{"c", "shop/web", 4})
		}, map[string][2]uint64{"shop/web": {7, 0}}},
		{"a port without traffic has no count", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 0})
			c.take(connections, true, countElement{"a", "shop/web", 0})
		}, map[string][2]uint64{}},
		{"ports beyond the bound share one", func(c *countTotals) {
			c.take(connections, true)
			c.take(connections, true, countElement{"a", "shop/a", 1})
			c.take(connections, true, countElement{"a", "shop/a", 1}, countElement{"b", "shop/b", 1})
			c.take(connections, true, countElement{"a", "shop/a", 1}, countElement{"b", "shop/b", 1}, countElement{"c", "shop/c", 5}, countElement{"d", "shop/d", 6})
		}, map[string][2]uint64{"shop/a": {1, 0}, "shop/b": {1, 0}, "": {11, 0}}},
		{"a port that goes makes room, and nothing goes back", func(c *countTotals) {
			c.take(connections, true)
			c.take(connections, true, countElement{"a", "shop/a", 1})
			c.take(connections, true, countElement{"a", "shop/a", 1}, countElement{"b", "shop/b", 1})
			c.take(connections, true, countElement{"a", "shop/a", 1}, countElement{"b", "shop/b", 1}, countElement{"c", "shop/c", 5})
			c.take(connections, true, countElement{"b", "shop/b", 1}, countElement{"c", "shop/c", 5})
			c.take(connections, true, countElement{"b", "shop/b", 1}, countElement{"c", "shop/c", 8})
		}, map[string][2]uint64{"shop/b": {1, 0}, "shop/c": {3, 0}, "": {5, 0}}},
		{"an element that a reading left out has not gone", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 0})
			c.take(connections, true, countElement{"a", "shop/web", 6})
			c.take(connections, false)
			c.take(connections, true, countElement{"a", "shop/web", 7})
		}, map[string][2]uint64{"shop/web": {7, 0}}},
		{"one that ten in a row left out has", func(c *countTotals) {
			c.take(connections, true, countElement{"a", "shop/web", 0})
			c.take(connections, true, countElement{"a", "shop/web", 6})
			for range unseenReadings {
				c.take(connections, false)
			}
		}, map[string][2]uint64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCountTotals(2)
			tt.read(&c)
			if diff := cmp.Diff(tt.want, c.all()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("of Services that went are forgotten", func(t *testing.T) {
		c := newCountTotals(2)
		c.take(connections, true, countElement{"a", "shop/web", 1})
		c.take(connections, true)
		if n := len(c.sets[countSet{nft.FamilyIP, "kube-proxy", connections}].elements); n != 0 {
			t.Errorf("%d elements are held", n)
		}
	})
}
