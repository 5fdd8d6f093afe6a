package leftovers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"github.com/cloudflare/ipvs"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// ipvsFile exists in each network namespace once the kernel has loaded IPVS. Asking for the generic netlink family
// would load it: the module has the alias of that family.
var ipvsFile = "/proc/thread-self/net/ip_vs"

// newIPVS is replaced by tests.
var newIPVS = ipvs.New

// ipvsConn talks to IPVS in one network namespace.
type ipvsConn struct{ ipvs.Client }

// dialIPVS returns nil if the kernel has not loaded IPVS.
func dialIPVS() (*ipvsConn, error) {
	if _, err := os.Stat(ipvsFile); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	client, err := newIPVS()
	if err != nil {
		return nil, fmt.Errorf("look for the generic netlink family IPVS: %w", err)
	}
	return &ipvsConn{client}, nil
}

// Close closes the socket. The library's interface lacks the method.
func (c *ipvsConn) Close() {
	if closer, ok := c.Client.(io.Closer); ok {
		_ = closer.Close()
	}
}

// virtualServer is an address, port and protocol that IPVS balances.
type virtualServer struct {
	protocol ipvs.Protocol
	at       netip.AddrPort
}

func (v virtualServer) String() string {
	return fmt.Sprintf("virtual server %s %s", nft.ProtocolName(uint8(v.protocol)), v.at)
}

// key names the virtual server in a request.
func (v virtualServer) key() ipvs.Service {
	family := ipvs.AddressFamily(ipvs.INET6)
	if v.at.Addr().Is4() {
		family = ipvs.INET
	}
	return ipvs.Service{Address: v.at.Addr(), Port: v.at.Port(), Protocol: v.protocol, Family: family}
}

// virtualServers returns the virtual servers with an address. kube-proxy makes none for a packet mark.
func (c *ipvsConn) virtualServers() (all []virtualServer, err error) {
	services, err := c.Services()
	if err != nil && !none(err) {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	for _, s := range services {
		if s.FWMark == 0 {
			all = append(all, virtualServer{s.Protocol, netip.AddrPortFrom(s.Address, s.Port)})
		}
	}
	return all, nil
}

// realServers returns the servers of a virtual server.
func (c *ipvsConn) realServers(v virtualServer) ([]ipvs.DestinationExtended, error) {
	servers, err := c.Destinations(v.key())
	if err != nil && !none(err) {
		return nil, fmt.Errorf("list the servers of %s: %w", v, err)
	}
	return servers, nil
}

// takeNoNew sets the weight of a real server to zero.
func (c *ipvsConn) takeNoNew(v virtualServer, server ipvs.Destination) error {
	server.Weight = 0
	if err := c.UpdateDestination(v.key(), server); err != nil && !gone(err) {
		return fmt.Errorf("set the weight of %s of %s to 0: %w", netip.AddrPortFrom(server.Address, server.Port), v, err)
	}
	return nil
}

// delete removes a virtual server. Since Linux 5.9, and with the sysctl expire_nodest_conn, which kube-proxy sets, its
// connections and their entries in conntrack go with it.
func (c *ipvsConn) delete(v virtualServer) error {
	if err := c.RemoveService(v.key()); err != nil && !gone(err) {
		return fmt.Errorf("delete %s: %w", v, err)
	}
	return nil
}

// none reports whether an error is the library's answer to an empty list.
func none(err error) bool { return err == os.ErrNotExist }

// gone reports whether an error says that another program has deleted the object.
func gone(err error) bool {
	for _, e := range []error{unix.ESRCH, unix.ENOENT, unix.ENODEV, unix.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
