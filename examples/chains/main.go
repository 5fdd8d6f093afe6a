// Command chains is a Service proxy over nftables as a network plugin's author might write it: a chain for each list of
// endpoints, under names that say whose it is, in tables of its own. It keeps sources where kube-proxy keeps them, and refuses,
// drops and balances as kube-proxy does.
//
// Its rules grow with the number of Services, and so does the time of each Sync. kube-proxy of this repository does it with a fixed number of rules.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nodelocal"
)

// backend writes the whole state to nftables. It keeps what it wrote, so that a change costs the kernel no more than the difference.
type backend struct {
	conn         *nft.Conn
	clusterCIDRs map[nft.Family]netip.Prefix
	have         map[nft.Family]*nft.Table
}

// sync is called with all there is. It makes one transaction for both families, which the kernel takes whole or not at all.
func (b *backend) sync(ctx context.Context, all *model.Changes) error {
	var tx nft.Transaction
	want := map[nft.Family]*nft.Table{}
	for _, family := range nft.Families {
		have := b.have[family]
		if have == nil { // what an earlier run left, or one that failed
			var err error
			if have, err = b.conn.ReadTable(ctx, family, tableName); err != nil {
				return fmt.Errorf("read nftables: %w", err)
			}
		}
		want[family] = buildTable(family, all, b.clusterCIDRs[family])
		tx.Append(nft.Diff(have, want[family]))
	}
	stats, err := b.conn.Commit(ctx, tx)
	if err != nil {
		b.have = nil
		return fmt.Errorf("write nftables: %w", err)
	}
	b.have = want
	log.Printf("synced: %d Service ports, %d elements and %d chains changed", len(all.Ports), stats.Elements, stats.Chains)
	return nil
}

func main() {
	target := flag.String("node-local-source", "unix:///run/nftproxy/node-local.sock", "address of the server")
	node := flag.String("hostname-override", "", "name of this node; by default the host's name")
	b := &backend{clusterCIDRs: map[nft.Family]netip.Prefix{}}
	flag.Func("cluster-cidr", "where pods are; may be given twice, for both IP families", func(text string) error {
		cidr, err := netip.ParsePrefix(text)
		family := nft.FamilyIP
		if cidr.Addr().Is6() {
			family = nft.FamilyIP6
		}
		b.clusterCIDRs[family] = cidr
		return err
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if b.conn, err = nft.Dial(nft.Config{}); err != nil {
		log.Fatal(err)
	}
	defer b.conn.Close()
	if err := nodelocal.Run(ctx, *target, model.FullState(b.sync), nodelocal.Options{Node: *node}); err != nil {
		log.Fatal(err)
	}
}
