package model

import (
	"fmt"
	"net/netip"
	"testing"
)

// many returns ports of 10,000 Services with 10 endpoints each.
func many() map[PortID]*ServicePort {
	ports := map[PortID]*ServicePort{}
	for i := range 10_000 {
		id := PortID{Namespace: "shop", Service: fmt.Sprintf("web-%05d", i), Protocol: TCP, Family: IPv4}
		port := &ServicePort{ID: id, Port: 80}
		for j := range 10 {
			port.Cluster = append(port.Cluster, Endpoint{
				AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), 8080),
			})
		}
		ports[id] = port
	}
	return ports
}

// BenchmarkPortStore shows the cost for 10,000 ports with 10 endpoints each: of everything that comes anew and is
// as before (other values, equal field by field), of one change among them, and of the first time.
func BenchmarkPortStore(b *testing.B) {
	ports, same := many(), many()
	store := NewPortStore()
	store.Write(&Changes{Full: true, Ports: ports})
	store.Commit()

	b.Run("everything as before", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			store.Write(&Changes{Full: true, Ports: same})
			if store.Changed() {
				b.Fatal("something changed")
			}
		}
	})
	b.Run("one change", func(b *testing.B) {
		b.ReportAllocs()
		var id PortID
		for id = range ports {
			break
		}
		number := uint16(0)
		for b.Loop() {
			number++
			store.Write(&Changes{Ports: map[PortID]*ServicePort{id: {ID: id, Port: number}}})
			for range store.Updated() {
				number++
			}
			store.Commit()
		}
	})
	b.Run("the first time", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			store := NewPortStore()
			store.Write(&Changes{Full: true, Ports: ports})
			for range store.Updated() {
			}
			store.Commit()
		}
	})
}
