package compiler

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// frontend is one address that clients dial; a node port has no addr.
type frontend struct {
	addr     netip.Addr
	port     uint16
	protocol model.Protocol
}

func (f frontend) isNodePort() bool { return !f.addr.IsValid() }

// String returns "address:port/PROTOCOL", or "node port 30080/PROTOCOL".
func (f frontend) String() string {
	if f.isNodePort() {
		return fmt.Sprintf("node port %d/%s", f.port, f.protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.addr, f.port), f.protocol)
}

// maxFrontendKey is the length of the longest key: the key of an IPv6 address.
const maxFrontendKey = 16 + 4 + 4

// key returns the frontend as a key of the maps, or the start of one.
func (f frontend) key() nft.Data {
	var buf [maxFrontendKey]byte
	return nft.Data(f.appendKey(buf[:0]))
}

func (f frontend) appendKey(to []byte) []byte {
	if !f.isNodePort() {
		to = nft.AppendAddr(to, f.addr)
	}
	return nft.AppendPort(nft.AppendProto(to, uint8(f.protocol)), f.port)
}

func parseKey(key nft.Data) (fe frontend, ok bool) {
	if addr := len(key) - 8; addr > 0 {
		if fe.addr, ok = netip.AddrFromSlice([]byte(key[:addr])); !ok {
			return fe, false
		}
		key = key[addr:]
	}
	if len(key) != 8 {
		return fe, false
	}
	fe.protocol, fe.port = model.Protocol(key[0]), binary.BigEndian.Uint16([]byte(key[4:6]))
	return fe, true
}

// ParseEndpoint reads the value of an element of a map of endpoints, or of an affinity map: an address and a port. It
// returns false if the value is none.
func ParseEndpoint(value nft.Data) (netip.AddrPort, bool) {
	if len(value) < 4 {
		return netip.AddrPort{}, false
	}
	at := len(value) - 4
	addr, ok := netip.AddrFromSlice([]byte(value[:at]))
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16([]byte(value[at:at+2]))), ok
}
