package ruledump

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
)

// FromKernel reads the tables of the proxy with a service-proxy-name, "" for none, in the current network namespace. If
// there are no tables, it is no error: see NeedTables. The name of the node is the host name: see NameNode. It needs
// CAP_NET_ADMIN. It leaves out the clients in dynamic maps; ReadClients reads them, with the connection and ctx.
func FromKernel(ctx context.Context, conn *nft.Conn, serviceProxyName string) (*Snapshot, error) {
	s := &Snapshot{Origin: Kernel, ServiceProxyName: serviceProxyName, Taken: time.Now().UTC().Truncate(time.Second), IPv4Only: !sysctl.Tree{}.KernelHasIPv6()}
	var err error
	if s.Generation, err = conn.Generation(ctx); err != nil {
		return nil, err
	}
	for _, family := range nft.Families {
		if family == nft.FamilyIP6 && s.IPv4Only {
			continue // such a kernel refuses to answer
		}
		table, err := conn.ReadTable(ctx, family, compiler.TableNameFor(serviceProxyName))
		if err != nil {
			return nil, err
		}
		if table != nil {
			s.Tables = append(s.Tables, table)
		}
	}
	s.ReadClients = func(table *nft.Table, set *nft.Set) error {
		elements, err := conn.ReadElements(ctx, table.Family, table.Name, set)
		for _, e := range elements {
			set.Put(e)
		}
		return err
	}
	s.ReadCounts = func() (Counts, error) { return readCounts(ctx, conn, s.Tables) }
	s.Node, _ = os.Hostname() // only shown
	s.NodeSource = NodeFromHost
	s.Addresses, err = ownAddresses()
	return s, err
}

func readCounts(ctx context.Context, conn *nft.Conn, tables []*nft.Table) (Counts, error) {
	counts := Counts{}
	for _, t := range tables {
		for _, set := range t.Sets {
			if !set.Counter {
				continue
			}
			id := CountedSet{Family: t.Family, Set: set.Name}
			_, err := conn.Counts(ctx, t.Family, t.Name, set.Name, func(key nft.Data, _ string, n nft.Count) { counts.Put(id, key, n) })
			if err != nil {
				return nil, err
			}
		}
	}
	return counts, nil
}

// LoadCounts reads what the elements have counted, if they count and come from a kernel.
func (s *Snapshot) LoadCounts() (err error) {
	if s.ReadCounts != nil && s.Counts == nil {
		s.Counts, err = s.ReadCounts()
	}
	return err
}

// NeedTables returns an error if the snapshot has no table.
func (s *Snapshot) NeedTables() error {
	if len(s.Tables) > 0 {
		return nil
	}
	return fmt.Errorf("the kernel has no table ip %s or ip6 %[1]s in this network namespace: see whether the proxy runs, and whether this is the node's own namespace", compiler.TableNameFor(s.ServiceProxyName))
}

// ReadAllClients reads the clients in all dynamic maps.
func (s *Snapshot) ReadAllClients() error {
	for _, t := range s.Tables {
		for _, set := range t.Sets {
			if !set.Dynamic || s.ReadClients == nil {
				continue
			}
			if err := s.ReadClients(t, set); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownAddresses returns the addresses of this network namespace.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this network namespace: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr().Unmap())
		}
	}
	return out, nil
}
