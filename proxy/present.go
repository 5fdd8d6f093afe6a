package proxy

import (
	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

// Present returns the tables that Cleanup would remove, in nft's words, such as "ip kube-proxy".
func Present(conn *nft.Conn) ([]string, error) {
	var tables []string
	for _, family := range nft.Families {
		for _, name := range []string{compiler.TableName, compiler.StandInName} {
			there, err := conn.HasTable(family, name)
			if err != nil {
				return nil, err
			}
			if there {
				tables = append(tables, family.String()+" "+name)
			}
		}
	}
	return tables, nil
}
