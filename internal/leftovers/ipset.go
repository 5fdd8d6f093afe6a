package leftovers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/cloudflare/ipvs"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// ipsetNames are the sets that the mode ipvs makes for IPv4. Other programs have sets that begin with
// KUBE- too, such as kube-router's KUBE-SRC-….
var ipsetNames = []string{
	"KUBE-CLUSTER-IP", "KUBE-LOOP-BACK", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-FW",
	"KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-NODE-PORT-TCP",
	"KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-SCTP", "KUBE-NODE-PORT-LOCAL-SCTP",
	"KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
}

// maxIPSetName is the kernel's limit. kube-proxy cuts names to it.
const maxIPSetName = 31

// ipsetIPv6 returns the name of the same set for IPv6.
func ipsetIPv6(name string) string {
	name = strings.Replace(name, "KUBE-", "KUBE-6-", 1)
	return name[:min(len(name), maxIPSetName)]
}

// Messages of ipset, from linux/netfilter/ipset/ip_set.h. Package github.com/vishvananda/netlink lists all elements of a
// set to find out whether it exists, and panics at an error that is not an errno.
const (
	ipsetDestroy, ipsetTest, ipsetHeader                  = 3, 11, 12
	ipsetAttrProtocol, ipsetAttrName                      = 1, 2
	ipsetAttrData                                         = 7
	ipsetAttrIP, ipsetAttrPort, ipsetAttrProto            = 1, 4, 7
	ipsetProtocol                                         = 6
	ipsetBusy, ipsetNotInSet                   unix.Errno = 4100, 4103
)

// ipsetModule exists once the kernel has loaded ipset. Asking for it by netlink would load it.
var ipsetModule = "/sys/module/ip_set"

// ipsetConn talks to ipset in one network namespace.
type ipsetConn struct{ *netlink.Conn }

// dialIPSet returns nil if the kernel has not loaded ipset.
func dialIPSet() (*ipsetConn, error) {
	if _, err := os.Stat(ipsetModule); err != nil {
		return nil, nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	return &ipsetConn{conn}, nil
}

// execute sends a command. The kernel answers ipsetHeader with the header, and other commands only if the request asks for
// an acknowledgement.
func (c *ipsetConn) execute(command uint16, set string, data func(*netlinkattr.List)) error {
	flags := netlink.Request | netlink.Acknowledge
	if command == ipsetHeader {
		flags = netlink.Request
	}
	list := netlinkattr.List{unix.AF_INET, 0, 0, 0} // struct nfgenmsg
	list.Bytes(ipsetAttrProtocol, []byte{ipsetProtocol})
	list.Text(ipsetAttrName, set)
	if data != nil {
		at := list.Begin(ipsetAttrData)
		data(&list)
		list.End(at)
	}
	_, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_IPSET<<8 | command), Flags: flags},
		Data:   list,
	})
	return err
}

// ipsets returns kube-proxy's sets.
func ipsets() (names []string, err error) {
	c, err := dialIPSet()
	if c == nil || err != nil {
		return nil, err
	}
	defer c.Close()
	for _, ipv4 := range ipsetNames {
		for _, name := range []string{ipv4, ipsetIPv6(ipv4)} {
			switch err := c.execute(ipsetHeader, name, nil); {
			case err == nil:
				names = append(names, name)
			case !errors.Is(err, unix.ENOENT):
				return names, fmt.Errorf("look for the set %s: %w", name, err)
			}
		}
	}
	return names, nil
}

// destroyIPSets removes kube-proxy's sets. The kernel keeps a set that a rule names.
func destroyIPSets(ctx context.Context) (removal Removal, err error) {
	names, err := ipsets()
	if len(names) == 0 || err != nil {
		return Removal{}, err
	}
	c, err := dialIPSet()
	if c == nil || err != nil {
		return Removal{}, err
	}
	defer c.Close()
	deadline := time.Now().Add(destroyTime)
	for _, name := range names {
		switch err := c.destroy(ctx, name, deadline); {
		case err == nil, errors.Is(err, unix.ENOENT):
			removal.remove(setName(name), true)
		case errors.Is(err, ipsetBusy):
			removal.Kept.add(setName(name))
		default:
			return removal, fmt.Errorf("destroy the set %s: %w", name, err)
		}
	}
	return removal, nil
}

func setName(name string) string { return "set " + name }

// destroyTime is for all sets together: nf_tables lets go of the sets of deleted rules some time after the commit.
const destroyTime = time.Second

// destroy tries until the deadline, and at least once.
func (c *ipsetConn) destroy(ctx context.Context, name string, deadline time.Time) error {
	for ; ; time.Sleep(10 * time.Millisecond) {
		err := c.execute(ipsetDestroy, name, nil)
		if !errors.Is(err, ipsetBusy) || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// isNodePort reports whether a set of kube-proxy has the port of a virtual server, which is on an address of the node.
func (c *ipsetConn) isNodePort(v virtualServer) (bool, error) {
	set := map[ipvs.Protocol]string{ipvs.TCP: "KUBE-NODE-PORT-TCP", ipvs.UDP: "KUBE-NODE-PORT-UDP", ipvs.SCTP: "KUBE-NODE-PORT-SCTP-HASH"}[v.protocol]
	if set == "" {
		return false, nil
	}
	if v.at.Addr().Is6() {
		set = ipsetIPv6(set)
	}
	err := c.execute(ipsetTest, set, func(data *netlinkattr.List) {
		data.Bytes(ipsetAttrPort|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, v.at.Port()))
		if v.protocol == ipvs.SCTP { // a set of addresses and ports, the others are of ports
			ip := data.Begin(ipsetAttrIP)
			data.Bytes(ipsetAddress(v.at.Addr()), v.at.Addr().AsSlice())
			data.End(ip)
			data.Bytes(ipsetAttrProto, []byte{byte(v.protocol)})
		}
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ipsetNotInSet), errors.Is(err, unix.ENOENT):
		return false, nil
	}
	return false, fmt.Errorf("look for %s in the set %s: %w", v, set, err)
}

// ipsetAddress returns the type of the attribute with an address.
func ipsetAddress(addr netip.Addr) uint16 {
	if addr.Is4() {
		return 1 | unix.NLA_F_NET_BYTEORDER
	}
	return 2 | unix.NLA_F_NET_BYTEORDER
}
