package leftovers

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
)

// Messages of IPVS over generic netlink, from linux/ip_vs.h and linux/genetlink.h. Package github.com/moby/ipvs runs
// modprobe, loads the module by asking for it, and brings in two more modules, so this file has what is needed here.
const (
	ctrlFamily, ctrlGetFamily                = 0x10, 3
	ctrlAttrFamilyID, ctrlAttrFamilyName     = 1, 2
	genericVersion, genericHeaderLen         = 1, 4
	ipvsDelService, ipvsGetService           = 3, 4
	ipvsSetDest, ipvsGetDest                 = 6, 8
	ipvsAttrService, ipvsAttrDest            = 1, 2
	serviceFamily, serviceProtocol           = 1, 2
	serviceAddress, servicePort              = 3, 4
	destAddress, destPort                    = 1, 2
	destForward, destWeight                  = 3, 4
	destUpperThreshold, destLowerThreshold   = 5, 6
	destActive, destInactive, destAddrFamily = 7, 8, 11
)

// ipvsFile exists in each network namespace once the kernel has loaded IPVS. Asking for the generic netlink family
// would load it: the module has the alias of that family.
var ipvsFile = "/proc/thread-self/net/ip_vs"

// virtualServer is an address, port and protocol that IPVS balances.
type virtualServer struct {
	protocol uint16
	at       netip.AddrPort
}

func (v virtualServer) String() string {
	return fmt.Sprintf("virtual server %s %s", nft.ProtocolName(uint8(v.protocol)), v.at)
}

// realServer is a server of a virtual one.
type realServer struct {
	at netip.AddrPort
	// forward, upper and lower are given back to the kernel as they are.
	forward, upper, lower uint32
	weight                uint32
	// connections counts the connections in any state, and UDP flows.
	connections int
}

// ipvsConn talks to IPVS in one network namespace.
type ipvsConn struct {
	*netlink.Conn
	family netlink.HeaderType
}

// dialGeneric is replaced by tests.
var dialGeneric = func() (*netlink.Conn, error) { return netlink.Dial(unix.NETLINK_GENERIC, nil) }

// dialIPVS returns nil if the kernel has not loaded IPVS.
func dialIPVS() (*ipvsConn, error) {
	if _, err := os.Stat(ipvsFile); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	conn, err := dialGeneric()
	if err != nil {
		return nil, err
	}
	c := &ipvsConn{Conn: conn, family: ctrlFamily}
	answers, err := c.execute(ctrlGetFamily, netlink.Request, func(ae *netlink.AttributeEncoder) { ae.String(ctrlAttrFamilyName, "IPVS") })
	for _, m := range answers {
		if id := netlinkattr.Find(m.Data[min(len(m.Data), genericHeaderLen):], ctrlAttrFamilyID); len(id) == 2 {
			c.family = netlink.HeaderType(binary.NativeEndian.Uint16(id))
		}
	}
	if err == nil && c.family == ctrlFamily {
		err = errors.New("the kernel has no generic netlink family IPVS")
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("look for the generic netlink family IPVS: %w", err)
	}
	return c, nil
}

// execute sends a command and returns the answers.
func (c *ipvsConn) execute(command byte, flags netlink.HeaderFlags, attributes func(*netlink.AttributeEncoder)) ([]netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	attributes(ae)
	body, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	return c.Execute(netlink.Message{
		Header: netlink.Header{Type: c.family, Flags: flags},
		Data:   append([]byte{command, genericVersion, 0, 0}, body...),
	})
}

// attributes are the attributes of a virtual or a real server, by their types.
type attributes map[uint16][]byte

// attributesOf returns the attributes in each attribute of a type.
func attributesOf(answers []netlink.Message, of uint16) (all []attributes, err error) {
	for _, m := range answers {
		err := netlinkattr.Each(m.Data[min(len(m.Data), genericHeaderLen):], func(typ uint16, payload []byte) error {
			if typ != of {
				return nil
			}
			a := attributes{}
			all = append(all, a)
			return netlinkattr.Each(payload, func(typ uint16, payload []byte) error {
				a[typ] = payload
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// number returns an attribute of 16 or 32 bits; 0 if it is missing.
func (a attributes) number(typ uint16) uint32 {
	switch b := a[typ]; len(b) {
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// addrPort is invalid if something is missing.
func (a attributes) addrPort(family uint16, addr, port uint16) (at netip.AddrPort) {
	number, err := netlinkattr.Uint16(a[port])
	if err != nil {
		return at
	}
	switch b := a[addr]; {
	case family == unix.AF_INET && len(b) >= 4:
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), number)
	case family == unix.AF_INET6 && len(b) >= 16:
		at = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), number)
	}
	return at
}

// virtualServers returns the virtual servers with an address. kube-proxy makes none for a packet mark.
func (c *ipvsConn) virtualServers() (all []virtualServer, err error) {
	answers, err := c.execute(ipvsGetService, netlink.Request|netlink.Dump, func(*netlink.AttributeEncoder) {})
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	return parseVirtualServers(answers)
}

func parseVirtualServers(answers []netlink.Message) (all []virtualServer, err error) {
	services, err := attributesOf(answers, ipvsAttrService)
	for _, a := range services {
		v := virtualServer{uint16(a.number(serviceProtocol)), a.addrPort(uint16(a.number(serviceFamily)), serviceAddress, servicePort)}
		if v.at.IsValid() {
			all = append(all, v)
		}
	}
	return all, err
}

// realServers returns the servers of a virtual one.
func (c *ipvsConn) realServers(v virtualServer) (all []realServer, err error) {
	answers, err := c.execute(ipvsGetDest, netlink.Request|netlink.Dump, v.encode)
	if err != nil {
		return nil, fmt.Errorf("list the servers of %s: %w", v, err)
	}
	return v.parseRealServers(answers)
}

func (v virtualServer) parseRealServers(answers []netlink.Message) (all []realServer, err error) {
	servers, err := attributesOf(answers, ipvsAttrDest)
	for _, a := range servers {
		r := realServer{
			at:      a.addrPort(cmp.Or(uint16(a.number(destAddrFamily)), v.family()), destAddress, destPort),
			forward: a.number(destForward), upper: a.number(destUpperThreshold), lower: a.number(destLowerThreshold),
			weight: a.number(destWeight), connections: int(a.number(destActive)) + int(a.number(destInactive)),
		}
		if r.at.IsValid() {
			all = append(all, r)
		}
	}
	return all, err
}

// takeNoNew sets the weight of a real server to zero.
func (c *ipvsConn) takeNoNew(v virtualServer, r realServer) error {
	_, err := c.execute(ipvsSetDest, netlink.Request|netlink.Acknowledge, func(ae *netlink.AttributeEncoder) {
		v.encode(ae)
		ae.Nested(ipvsAttrDest, func(ae *netlink.AttributeEncoder) error {
			ae.Bytes(destAddress, union(r.at.Addr()))
			ae.Bytes(destPort, binary.BigEndian.AppendUint16(nil, r.at.Port()))
			ae.Uint32(destForward, r.forward)
			ae.Uint32(destWeight, 0)
			ae.Uint32(destUpperThreshold, r.upper)
			ae.Uint32(destLowerThreshold, r.lower)
			ae.Uint16(destAddrFamily, addressFamily(r.at.Addr()))
			return nil
		})
	})
	if err != nil && !gone(err) {
		return fmt.Errorf("set the weight of %s of %s to 0: %w", r.at, v, err)
	}
	return nil
}

// delete removes a virtual server. Since Linux 5.9, and with the sysctl expire_nodest_conn, which kube-proxy sets, its
// connections and their entries in conntrack go with it.
func (c *ipvsConn) delete(v virtualServer) error {
	_, err := c.execute(ipvsDelService, netlink.Request|netlink.Acknowledge, v.encode)
	if err != nil && !gone(err) {
		return fmt.Errorf("delete %s: %w", v, err)
	}
	return nil
}

// gone reports whether an error says that another program has deleted the object.
func gone(err error) bool {
	for _, e := range []error{unix.ESRCH, unix.ENOENT, unix.ENODEV, unix.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (v virtualServer) encode(ae *netlink.AttributeEncoder) {
	ae.Nested(ipvsAttrService, func(ae *netlink.AttributeEncoder) error {
		ae.Uint16(serviceFamily, v.family())
		ae.Uint16(serviceProtocol, v.protocol)
		ae.Bytes(serviceAddress, union(v.at.Addr()))
		ae.Bytes(servicePort, binary.BigEndian.AppendUint16(nil, v.at.Port()))
		return nil
	})
}

func (v virtualServer) family() uint16 { return addressFamily(v.at.Addr()) }

func addressFamily(addr netip.Addr) uint16 {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// union returns an address as union nf_inet_addr: 16 bytes. An IPv4 address takes the first four.
func union(addr netip.Addr) []byte {
	b := make([]byte, 16)
	copy(b, addr.AsSlice())
	return b
}
