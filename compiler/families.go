package compiler

import (
	"fmt"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// families holds both IP families, in the order of model.Families.
type families [len(model.Families)]*family

// of returns one of the families. It panics if f is none.
func (fs *families) of(f model.Family) *family { return fs[familyIndex(f)] }

// familyIndex returns the index of a family in families. It panics if f is none: rules in the other family's table
// would be wrong silently.
func familyIndex(f model.Family) int {
	switch f {
	case model.IPv4:
		return 0
	case model.IPv6:
		return 1
	}
	panic(fmt.Sprintf("compiler: %s is neither IPv4 nor IPv6", f))
}

// nftFamily returns nft's family for a family of the model. It panics if f is none.
func nftFamily(f model.Family) nft.Family { return nft.Families[familyIndex(f)] }
