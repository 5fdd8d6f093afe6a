package ruledump

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/evaluator"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
	"github.com/vishvananda/netlink"
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
	s.ReadClients = func(table *nft.Table, set *nft.Set) error {
		elements, err := conn.ReadElements(ctx, table.Family, table.Name, set)
		for _, e := range elements {
			set.Put(e)
		}
		return err
	}
	s.Addresses, err = ownAddresses()
	return s, err
}

// NeedTables returns an error if the snapshot has no table.
func (s *Snapshot) NeedTables() error {
	if len(s.Tables) > 0 {
		return nil
	}
	return fmt.Errorf("the kernel has no table ip %s or ip6 %[1]s in this network namespace: see whether the proxy runs, and whether this is the node's own namespace", compiler.TableNameFor(s.ServiceProxyName))
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

// AddOthers reads the tables of other programs, and the routes and interfaces of this network namespace, for a walk
// through all of them. What cannot be looked at is named in NotLookedAt.
func (s *Snapshot) AddOthers(ctx context.Context, conn *nft.Conn) error {
	all, err := conn.ReadOthers(ctx, s.Tables...)
	if err != nil {
		return err
	}
	for _, t := range all {
		hooks := slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return c.Hook != "" })
		if family := t.Family.String(); hooks && (family == "bridge" || family == "netdev") {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("table %s %s: the evaluator follows no family %s", family, t.Name, family))
		}
		for _, c := range t.Chains {
			if t.Family == nft.FamilyInet && c.Hook == "ingress" {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("table %s %s, chain %s: the evaluator follows no hook ingress", t.Family, t.Name, c.Name))
			}
		}
	}
	for _, legacy := range []string{"ip", "ip6"} {
		if names, err := os.ReadFile("/proc/thread-self/net/" + legacy + "_tables_names"); err == nil && len(names) > 0 {
			s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("%stables-legacy: the kernel has its tables %s", legacy, strings.Join(strings.Fields(string(names)), ", ")))
		}
	}
	s.Ordered = all
	s.Host.Lookup = func(t *nft.Table, set string, key nft.Data) (nft.Element, bool, error) {
		return conn.Lookup(ctx, t, set, key)
	}
	return s.addRoutes()
}

// addRoutes reads the interfaces, and the routes of the main table.
func (s *Snapshot) addRoutes() error {
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list the interfaces of this network namespace: %w", err)
	}
	names := map[int]string{}
	s.Host.Interfaces = map[string]uint32{}
	for _, l := range links {
		names[l.Index], s.Host.Interfaces[l.Name] = l.Name, uint32(l.Index)
	}
	for family, anywhere := range map[int]netip.Prefix{netlink.FAMILY_V4: netip.PrefixFrom(netip.IPv4Unspecified(), 0), netlink.FAMILY_V6: netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			continue // an interface that is not known makes an answer depend on more rules
		}
		for _, r := range routes {
			to := anywhere
			if r.Dst != nil {
				if to, err = netip.ParsePrefix(r.Dst.String()); err != nil {
					continue
				}
			}
			s.Host.Routes = append(s.Host.Routes, evaluator.Route{Destination: to, Interface: names[r.LinkIndex]})
		}
	}
	return nil
}
