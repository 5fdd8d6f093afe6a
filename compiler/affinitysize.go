package compiler

import "github.com/nftproxy/nftproxy/nft"

// affinitySize returns how many clients the map of a Service port holds, where so many Service ports of an IP family
// have affinity. Further clients are served without affinity. The more maps there are, the smaller they are, since a
// flood can fill all of them. The kernel keeps the size that a map was made with, so at most as many maps have a size
// as there may be Service ports with it: not more than 64 have the largest one.
func affinitySize(ports int) uint32 {
	switch {
	case ports <= 64:
		return nft.DefaultSize
	case ports <= 512:
		return 1<<14 - 1
	case ports <= 4096:
		return 1<<12 - 1
	}
	return 1<<8 - 1
}

// updateAffinitySize gives all maps the size for the number of Service ports. The transaction does not contain it:
// maps that the kernel has keep their size and their clients.
func (f *family) updateAffinitySize() {
	size := affinitySize(len(f.affinity.ports))
	if size == f.affinity.size {
		return
	}
	f.affinity.size = size
	for _, p := range f.affinity.ports {
		for _, list := range endpointLists {
			if p.has(list) {
				f.draft.PutSet(f.affinitySet(p.mapName(list)))
			}
		}
	}
}
