// Package offline compiles rulesets from objects alone, without a kernel or a cluster.
package offline

import (
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
)

// Compile returns the rulesets that a proxy on the node would program for the objects,
// and the conflicts among them. It needs neither privileges nor a kernel.
func Compile(objects *manifests.Objects, options tracker.Options, config compiler.Config) ([]*nft.Table, []compiler.Conflict, error) {
	t := tracker.New(options)
	objects.Feed(t)
	c, err := compiler.New(config)
	if err != nil {
		return nil, nil, err
	}
	conflicts := c.Apply(t.Changes())
	return c.Tables(), conflicts, nil
}
