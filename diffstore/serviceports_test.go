package diffstore

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/model"
	"pgregory.net/rapid"
)

func TestServicePorts(t *testing.T) {
	t.Run("do what changes do", testServicePortsDoWhatChangesDo)
}

// Whatever comes in, as increments or as everything, what was applied from the differences is what a
// backend has that applied each of the Changes.
func testServicePortsDoWhatChangesDo(t *testing.T) {
	ids := []model.PortID{{Service: "a"}, {Service: "b"}, {Service: "c"}, {Service: "d"}}
	rapid.Check(t, func(t *rapid.T) {
		store := NewServicePorts()
		want, dataplane := map[model.PortID]uint16{}, map[model.PortID]uint16{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			changes := &model.Changes{Full: rapid.IntRange(0, 4).Draw(t, "full") == 0, Ports: map[model.PortID]*model.ServicePort{}}
			if changes.Full {
				clear(want)
			}
			for _, id := range ids {
				switch rapid.IntRange(0, 2).Draw(t, "what becomes of "+id.Service) {
				case 0:
					port := uint16(rapid.IntRange(1, 2).Draw(t, "port"))
					changes.Ports[id], want[id] = &model.ServicePort{ID: id, Port: port}, port
				case 1:
					if !changes.Full {
						changes.Ports[id] = nil
					}
					delete(want, id)
				}
			}
			store.Write(changes)
			if rapid.Bool().Draw(t, "the dataplane refuses") {
				continue
			}
			for id, port := range store.Deleted() {
				if dataplane[id] != port.Port {
					t.Fatalf("%s is deleted with port %d, the dataplane has %d", id, port.Port, dataplane[id])
				}
				delete(dataplane, id)
			}
			for id, port := range store.Updated() {
				if dataplane[id] == port.Port {
					t.Fatalf("%s is updated, the dataplane has port %d already", id, port.Port)
				}
				dataplane[id] = port.Port
			}
			store.Commit()
			if diff := cmp.Diff(want, maps.Clone(dataplane)); diff != "" {
				t.Fatalf("the dataplane has (-want +got):\n%s", diff)
			}
		}
	})
}
