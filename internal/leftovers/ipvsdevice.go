package leftovers

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// ipvsDevice is the name of the dummy device of the mode ipvs.
const ipvsDevice = "kube-ipvs0"

// device is kube-ipvs0. It makes the addresses of Services local ones, so that their packets reach IPVS.
type device struct {
	index     int
	addresses []netip.Addr
}

// readDevice returns nil if there is no kube-ipvs0.
func readDevice() (*device, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(interfaces, func(i net.Interface) bool { return i.Name == ipvsDevice })
	if i < 0 {
		return nil, nil
	}
	d := &device{index: interfaces[i].Index}
	addrs, err := interfaces[i].Addrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", ipvsDevice, err)
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			d.addresses = append(d.addresses, prefix.Addr())
		}
	}
	return d, nil
}

// removeAddress removes an address from the device.
func (d *device) removeAddress(addr netip.Addr) error {
	own := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
	if err := netlink.AddrDel(d.link(), &netlink.Addr{IPNet: own}); err != nil && !gone(err) {
		return fmt.Errorf("remove %s from %s: %w", addr, ipvsDevice, err)
	}
	return nil
}

// remove removes the device with all addresses that it still has.
func (d *device) remove() error {
	if err := netlink.LinkDel(d.link()); err != nil && !gone(err) {
		return fmt.Errorf("remove %s: %w", ipvsDevice, err)
	}
	return nil
}

func (d *device) link() netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: d.index}}
}

// socketFiles list the sockets of a network namespace.
var socketFiles = []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6", "/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"}

// maxSockets limits the sockets that one look reads: clients of the node can make a million.
const maxSockets = 100_000

// usedBySockets returns a function that reports whether a connected socket of the node has an address as its local address.
// While kube-ipvs0 has the address of a Service, a process of the node that dials the Service gets this address as its own,
// and would lose its connection with the address. If there are more than maxSockets sockets, each address counts as used.
func usedBySockets() (is func(netip.Addr) bool, err error) {
	used := map[netip.Addr]bool{}
	read := 0
	for _, name := range socketFiles {
		file, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for ; lines.Scan(); read++ {
			if read > maxSockets {
				return func(netip.Addr) bool { return true }, nil
			}
			// sl local_address rem_address st …, in hexadecimal.
			if f := strings.Fields(lines.Text()); len(f) > 3 && !slices.Contains(idleSockets, f[3]) {
				if addr, ok := parseSocketAddress(f[1]); ok {
					used[addr] = true
				}
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return func(a netip.Addr) bool { return used[a] }, nil
}

// idleSockets are the states of sockets without a peer, from net/tcp_states.h: TIME_WAIT, LISTEN, and for UDP CLOSE.
// ntpd and named bind a socket to each address of the node.
var idleSockets = []string{"06", "0A", "07"}

// parseSocketAddress reads an address such as 0100007F:1F90: words of 32 bits in the machine's byte order.
func parseSocketAddress(text string) (addr netip.Addr, ok bool) {
	text, _, _ = strings.Cut(text, ":")
	words, err := hex.DecodeString(text)
	if err != nil || len(words)%4 != 0 {
		return addr, false
	}
	var bytes []byte
	for len(words) > 0 {
		bytes = binary.NativeEndian.AppendUint32(bytes, binary.BigEndian.Uint32(words))
		words = words[4:]
	}
	addr, ok = netip.AddrFromSlice(bytes)
	return addr.Unmap(), ok
}
