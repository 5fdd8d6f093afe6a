package lab

import (
	"context"
	"fmt"

	"github.com/nftproxy/nftproxy/nft"
)

// TableError says how the kernel's tables differ from the wanted ones; nil if they do not. The elements of maps that
// packets fill do not count.
func TableError(c *nft.Conn, want []*nft.Table) error {
	for _, w := range want {
		got, err := c.ReadTable(context.Background(), w.Family, w.Name)
		if err != nil {
			return err
		}
		if tx := nft.Diff(got, w); !tx.Empty() {
			return fmt.Errorf("the kernel's table %s differs:\n%s", w.Family, tx)
		}
	}
	return nil
}
