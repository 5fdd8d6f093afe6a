package ruledump

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/nodeaddr"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
)

// FromKernel reads the tables of the proxy with a service-proxy-name, "" for none, in the current network namespace. If
// there are no tables, it is no error: see NeedTables. The name of the node is the host name. It needs
// CAP_NET_ADMIN. Unless all clients are wanted, dynamic maps are empty; ReadClients reads one, with the connection and
// ctx.
func FromKernel(ctx context.Context, conn *nft.Conn, serviceProxyName string, clients bool) (*Snapshot, error) {
	s := &Snapshot{ServiceProxyName: serviceProxyName, Header: Header{
		Origin: Kernel, NodeSource: NodeFromHost, Taken: time.Now().UTC().Truncate(time.Second), IPv4Only: !sysctl.Tree{}.KernelHasIPv6(),
	}}
	s.Node, _ = os.Hostname() // only shown
	var err error
	if s.Generation, err = conn.Generation(ctx); err != nil {
		return nil, err
	}
	for _, family := range nft.Families {
		if family == nft.FamilyIP6 && s.IPv4Only {
			continue // such a kernel refuses to answer
		}
		table, recording, err := conn.Record(ctx, family, compiler.TableNameFor(serviceProxyName), clients)
		if err == nil && table != nil {
			err = s.add(table, recording)
		}
		if err != nil {
			return nil, err
		}
	}
	s.ReadClients = func(table *nft.Table, set *nft.Set) ([]nft.Element, error) {
		return conn.ReadElements(ctx, table.Family, table.Name, set)
	}
	s.Addresses, err = nodeaddr.OfInterfaces()
	return s, err
}

// NeedTables returns an error if the snapshot has no table. It names the mode of kube-proxy whose rules are there instead.
func (s *Snapshot) NeedTables(ctx context.Context) error {
	if len(s.Tables) > 0 {
		return nil
	}
	return fmt.Errorf("the kernel has no table ip %s or ip6 %[1]s in this network namespace, %s: see whether the proxy runs, and whether this is the node's own namespace",
		compiler.TableNameFor(s.ServiceProxyName), otherMode(ctx))
}

// otherMode says which other mode of kube-proxy has left rules.
func otherMode(ctx context.Context) string {
	found, err := leftovers.Find(ctx)
	kinds := map[leftovers.Kind]leftovers.Leftover{}
	for _, l := range found {
		kinds[l.Kind] = l
	}
	for _, kind := range []leftovers.Kind{leftovers.IPVS, leftovers.NFT, leftovers.Legacy} {
		l, has := kinds[kind]
		switch {
		case has && kind == leftovers.IPVS:
			return fmt.Sprintf("and kube-proxy's mode ipvs has rules (%s)", l.Example)
		case has:
			return fmt.Sprintf("and kube-proxy's mode iptables has rules (%s, such as %s)", kind, l.Example)
		}
	}
	if err != nil {
		return "and whether kube-proxy's other modes have rules is not known: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return "and no other mode of kube-proxy has rules"
}
