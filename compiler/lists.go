package compiler

import (
	"slices"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// putLists puts the endpoints of a frontend into their maps.
func (f *family) putLists(e frontendElements) {
	sets := f.sets.of(e.frontend.isNodePort())
	f.putList(sets.endpoints, e.key, e.have.endpoints, e.want.endpoints)
	f.putList(sets.localEndpoints, e.key, e.have.localEndpoints, e.want.localEndpoints)
}

// listElementSize is the size of the longest element of a list: an IPv6 frontend, a slot and an endpoint.
const listElementSize = maxFrontendKey + 4 + 16 + 4

// listBlock is how many elements share one allocation. It is small, because one element that stays keeps the memory of
// all.
const listBlock = 16

// putList puts the endpoints that are not in their slots yet, and removes the slots after the last.
func (f *family) putList(set *nft.Set, key nft.Data, have, want []model.Endpoint) {
	var buf [listBlock * listElementSize]byte
	for first := 0; first < len(want); first += listBlock {
		slots := want[first:min(first+listBlock, len(want))]
		block := buf[:0]
		var ends [listBlock]int
		for i, e := range slots {
			if at := first + i; at >= len(have) || have[at].AddrPort != e.AddrPort {
				block = append(block, key...)
				block = nft.AppendInteger(block, uint32(at))
				block = nft.AppendPort(nft.AppendAddr(block, e.AddrPort.Addr()), e.AddrPort.Port())
			}
			ends[i] = len(block)
		}
		f.putBlock(set, nft.Data(block), len(key)+4, ends[:len(slots)])
	}
	for i := len(want); i < len(have); i++ {
		f.draft.Remove(set, nft.Data(nft.AppendInteger(append(buf[:0], key...), uint32(i))))
	}
}

// putBlock puts the elements of a block, which end at ends, and whose keys have the given length.
func (f *family) putBlock(set *nft.Set, block nft.Data, keyLen int, ends []int) {
	start := 0
	for _, end := range slices.Compact(ends) {
		if end > start {
			f.draft.Put(set, nft.Element{Key: block[start : start+keyLen], Value: block[start+keyLen : end]})
		}
		start = end
	}
}
