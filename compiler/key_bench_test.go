package compiler

import (
	"net/netip"
	"testing"

	"github.com/nftproxy/nftproxy/model"
)

// BenchmarkFrontendKey measures the making of a key, the least that each frontend costs.
func BenchmarkFrontendKey(b *testing.B) {
	for name, addr := range map[string]string{"IPv4": "192.0.2.1", "IPv6": "2001:db8::1"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			f := frontend{addr: netip.MustParseAddr(addr), port: 80, protocol: model.TCP}
			for b.Loop() {
				f.key()
			}
		})
	}
}
