package leftovers

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudflare/ipvs"
	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fakeIPVS answers as IPVS does: the kernels of make test-kernels have the real one.
type fakeIPVS struct {
	ipvs.Client
	// servers are in the order of the kernel's answers.
	servers []fakeServer
}

type fakeServer struct {
	virtualServer
	real []ipvs.DestinationExtended
}

// useFakeIPVS makes the package talk to the fake one.
func useFakeIPVS(t *testing.T, servers ...fakeServer) *fakeIPVS {
	t.Helper()
	f := &fakeIPVS{servers: servers}
	file, dial := ipvsFile, newIPVS
	t.Cleanup(func() { ipvsFile, newIPVS = file, dial })
	ipvsFile = filepath.Join(t.TempDir(), "ip_vs")
	if err := os.WriteFile(ipvsFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newIPVS = func() (ipvs.Client, error) { return f, nil }
	return f
}

func (f *fakeIPVS) Services() (all []ipvs.ServiceExtended, err error) {
	for _, s := range f.servers {
		all = append(all, ipvs.ServiceExtended{Service: s.key()})
	}
	return all, emptyIsNone(len(all))
}

func (f *fakeIPVS) Destinations(s ipvs.Service) ([]ipvs.DestinationExtended, error) {
	i, err := f.find(s)
	if err != nil {
		return nil, err
	}
	return f.servers[i].real, emptyIsNone(len(f.servers[i].real))
}

func (f *fakeIPVS) UpdateDestination(s ipvs.Service, d ipvs.Destination) error {
	i, err := f.find(s)
	if err != nil {
		return err
	}
	for j, r := range f.servers[i].real {
		if r.Address == d.Address && r.Port == d.Port {
			f.servers[i].real[j].Destination = d
			return nil
		}
	}
	return unix.ENOENT
}

func (f *fakeIPVS) RemoveService(s ipvs.Service) error {
	i, err := f.find(s)
	if err == nil {
		f.servers = slices.Delete(f.servers, i, i+1)
	}
	return err
}

func (f *fakeIPVS) find(s ipvs.Service) (int, error) {
	i := slices.IndexFunc(f.servers, func(f fakeServer) bool { return f.key() == s })
	if i < 0 {
		return i, unix.ESRCH
	}
	return i, nil
}

// emptyIsNone is the library's answer to an empty list.
func emptyIsNone(count int) error {
	if count == 0 {
		return os.ErrNotExist
	}
	return nil
}

func server(protocol ipvs.Protocol, at string, backends ...ipvs.DestinationExtended) fakeServer {
	return fakeServer{virtualServer{protocol, netip.MustParseAddrPort(at)}, backends}
}

func endpoint(at string, weight, connections uint32) ipvs.DestinationExtended {
	addr := netip.MustParseAddrPort(at)
	return ipvs.DestinationExtended{ActiveConnections: connections, Destination: ipvs.Destination{
		Address: addr.Addr(), Port: addr.Port(), UpperThreshold: 7, LowerThreshold: 3, Weight: weight,
	}}
}

// makeDevice makes kube-ipvs0. It is of another type: the kernel need not have dummy devices.
func makeDevice(t *testing.T, addrs ...string) {
	t.Helper()
	link := &vnetlink.Bridge{LinkAttrs: vnetlink.LinkAttrs{Name: ipvsDevice}}
	if err := vnetlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if err := vnetlink.AddrAdd(link, &vnetlink.Addr{IPNet: vnetlink.NewIPNet(net.ParseIP(a)), Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
	}
}

func addressesOf(t *testing.T) (texts []string) {
	t.Helper()
	d, err := readDevice()
	if err != nil {
		t.Fatal(err)
	}
	if d == nil {
		return []string{"no device"}
	}
	for _, a := range d.addresses {
		texts = append(texts, a.String())
	}
	slices.Sort(texts)
	return texts
}

func TestDrain(t *testing.T) {
	const tcp, udp = ipvs.TCP, ipvs.UDP
	foreign := server(tcp, "203.0.113.9:80", endpoint("10.244.1.5:8080", 1, 0))
	remove := func(t *testing.T, r *Remover) Removal {
		t.Helper()
		removal, err := r.Remove(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return removal
	}
	expect := func(t *testing.T, what string, want, got any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(fakeServer{}, virtualServer{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	t.Run("what has no connections goes, and the rest with its last one", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1", "10.96.0.2", "fd00::1")
		leaveKubeProxyAlone(t, "nft")
		fake := useFakeIPVS(t,
			server(tcp, "10.96.0.1:443", endpoint("10.244.1.5:6443", 1, 2), endpoint("10.244.1.6:6443", 1, 0)),
			server(udp, "10.96.0.1:53", endpoint("10.244.1.5:53", 1, 0)),
			server(tcp, "10.96.0.2:80"),
			foreign,
			server(tcp, "[fd00::1]:443", endpoint("[fd00:1::5]:6443", 1, 1)),
		)
		r := &Remover{DrainTimeout: time.Hour}
		removal := remove(t, r)
		expect(t, "draining", Draining{VirtualServers: 2, Connections: 3, Addresses: 2}, removal.Draining)
		expect(t, "removed", []string{"virtual server udp 10.96.0.1:53", "virtual server tcp 10.96.0.2:80"}, removal.Removed.First)
		expect(t, "virtual servers", []fakeServer{
			server(tcp, "10.96.0.1:443", endpoint("10.244.1.5:6443", 0, 2), endpoint("10.244.1.6:6443", 0, 0)),
			foreign,
			server(tcp, "[fd00::1]:443", endpoint("[fd00:1::5]:6443", 0, 1)),
		}, fake.servers)
		expect(t, "addresses", []string{"10.96.0.1", "fd00::1"}, addressesOf(t))
		if found := find(t); len(found) != 2 || found[0].Count < 50 {
			t.Errorf("the rules went before the connections: %v", found)
		}
		fake.servers[0].real[0].ActiveConnections = 0
		fake.servers[2].real[0].ActiveConnections = 0
		removal = remove(t, r)
		expect(t, "draining", Draining{}, removal.Draining)
		expect(t, "virtual servers", []fakeServer{foreign}, fake.servers)
		expect(t, "addresses", []string{"no device"}, addressesOf(t))
		if found := find(t); found != nil || !r.begun.IsZero() {
			t.Errorf("left %v; begun %v", found, r.begun)
		}
	})
	t.Run("the timeout ends connections", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1")
		fake := useFakeIPVS(t, server(tcp, "10.96.0.1:443", endpoint("10.244.1.5:6443", 1, 2)), foreign)
		removal := remove(t, new(Remover))
		if removal.Ended != 2 {
			t.Errorf("ended %d connections", removal.Ended)
		}
		expect(t, "virtual servers", []fakeServer{foreign}, fake.servers)
		expect(t, "addresses", []string{"no device"}, addressesOf(t))
	})
	t.Run("a virtual server that is back is said", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1", "10.96.0.2")
		fake := useFakeIPVS(t, server(tcp, "10.96.0.1:443", endpoint("10.244.1.5:6443", 1, 2)), server(tcp, "10.96.0.2:80"))
		r := &Remover{DrainTimeout: time.Hour}
		remove(t, r)
		expect(t, "back at first", "", r.back(find(t)))
		fake.servers = append(fake.servers, server(tcp, "10.96.0.2:80"))
		if addr, err := vnetlink.ParseAddr("10.96.0.2/32"); err != nil {
			t.Fatal(err)
		} else if link, err := vnetlink.LinkByName(ipvsDevice); err != nil {
			t.Fatal(err)
		} else if err := vnetlink.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
		expect(t, "back", "virtual server tcp 10.96.0.2:80", r.back(find(t)))
	})
	t.Run("kube-ipvs0 stays for node ports, and without it a virtual server is another program's", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1", "10.96.0.2")
		const address = "192.168.9.1"
		lo, err := vnetlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := vnetlink.AddrAdd(lo, &vnetlink.Addr{IPNet: vnetlink.NewIPNet(net.ParseIP(address))}); err != nil {
			t.Fatal(err)
		}
		sets := keepNodePort(t, 30080)
		fake := useFakeIPVS(t, server(tcp, address+":30080", endpoint("10.244.1.5:8080", 1, 2)), server(tcp, "10.96.0.2:80"))
		r := &Remover{DrainTimeout: time.Hour}
		expect(t, "draining", Draining{VirtualServers: 1, Connections: 2}, remove(t, r).Draining)
		expect(t, "addresses", []string(nil), addressesOf(t))
		fake.servers[0].real[0].ActiveConnections = 0
		expect(t, "kept", sets, remove(t, r).Kept.First)
		expect(t, "virtual servers", []fakeServer{}, fake.servers)
		expect(t, "addresses", []string{"no device"}, addressesOf(t))
		fake.servers = []fakeServer{server(tcp, address+":30080")}
		remove(t, r)
		expect(t, "virtual servers", []fakeServer{server(tcp, address+":30080")}, fake.servers)
	})
	t.Run("excluded addresses stay", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1")
		excluded := server(tcp, "10.96.0.1:443", endpoint("10.244.1.5:6443", 1, 0))
		fake := useFakeIPVS(t, excluded)
		remove(t, &Remover{Excluded: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}})
		expect(t, "virtual servers", []fakeServer{excluded}, fake.servers)
	})
	t.Run("another program's IPVS is not asked", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxyAlone(t, "nft")
		useFakeIPVS(t, foreign)
		newIPVS = func() (ipvs.Client, error) { return nil, unix.EPERM }
		remove(t, new(Remover))
		if found := find(t); found != nil {
			t.Errorf("left %v", found)
		}
	})
	t.Run("an address that a connected socket of the node uses stays until the timeout", func(t *testing.T) {
		netns.EnterForTest(t)
		makeDevice(t, "10.96.0.1", "10.96.0.2", "fd00::1", "fd00::2")
		lo, err := vnetlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := vnetlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		for addr, peer := range map[string]string{"10.96.0.1": "127.0.0.1", "fd00::1": "::1"} {
			socket, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}, &net.UDPAddr{IP: net.ParseIP(peer), Port: 53})
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
		}
		// As ntpd and named do at each address.
		for _, at := range []string{"10.96.0.2:0", "[fd00::2]:0"} {
			for _, listen := range []func() (io.Closer, error){
				func() (io.Closer, error) { return net.ListenPacket("udp", at) },
				func() (io.Closer, error) { return net.Listen("tcp", at) },
			} {
				socket, err := listen()
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
			}
		}
		removal := remove(t, &Remover{DrainTimeout: time.Hour})
		expect(t, "draining", Draining{Addresses: 2}, removal.Draining)
		expect(t, "addresses", []string{"10.96.0.1", "fd00::1"}, addressesOf(t))
		remove(t, new(Remover))
		expect(t, "addresses", []string{"no device"}, addressesOf(t))
	})
}

func TestUsedBySockets(t *testing.T) {
	before := socketFiles
	t.Cleanup(func() { socketFiles = before })
	for count, want := range map[int]bool{maxSockets: false, maxSockets + 1: true} {
		file := filepath.Join(t.TempDir(), "tcp")
		line := "   0: " + socketWord(127, 0, 0, 1) + ":1F90 0100007F:8124 01 00000000:00000000 00:00000000 00000000     0        0 2144 1 0000000000000000 20 0 0 10 -1\n"
		if err := os.WriteFile(file, []byte("sl local_address\n"+strings.Repeat(line, count)), 0o600); err != nil {
			t.Fatal(err)
		}
		socketFiles = []string{file}
		is, err := usedBySockets()
		if err != nil || is(netip.MustParseAddr("10.96.0.1")) != want || !is(netip.MustParseAddr("127.0.0.1")) {
			t.Errorf("%d sockets: error %v, or not what it has to be", count, err)
		}
	}
}

// socketWord is a part of an address as the kernel prints it.
func socketWord(b ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b)) }

func TestParseSocketAddress(t *testing.T) {
	word := socketWord
	for text, want := range map[string]string{
		word(10, 96, 0, 1) + ":01BB": "10.96.0.1",
		word(0xfd, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 1) + ":01BB":      "fd00::1",
		word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0xff, 0xff) + word(10, 96, 0, 1) + ":01BB": "10.96.0.1",
		"local_address": "invalid IP",
		"0100:1":        "invalid IP",
	} {
		if addr, ok := parseSocketAddress(text); addr.String() != want || ok != addr.IsValid() {
			t.Errorf("%s is %s, %v; want %s", text, addr, ok, want)
		}
	}
}

func TestIPSetNames(t *testing.T) {
	for name, want := range map[string]string{"KUBE-CLUSTER-IP": "KUBE-6-CLUSTER-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR": "KUBE-6-LOAD-BALANCER-SOURCE-CID"} {
		if got := ipsetIPv6(name); got != want {
			t.Errorf("%s for IPv6 is %s, want %s", name, got, want)
		}
	}
}

// keepNodePort makes kube-proxy's set of node ports for TCP, which a rule of another program names. It returns its name as in
// Removal.Kept.
func keepNodePort(t *testing.T, port uint16) (kept []string) {
	t.Helper()
	const name = "KUBE-NODE-PORT-TCP"
	if err := vnetlink.IpsetCreate(name, "bitmap:port", vnetlink.IpsetCreateOptions{PortFrom: 0, PortTo: 65535}); err != nil {
		t.Fatal(err)
	}
	c, err := dialIPSet()
	if c == nil || err != nil {
		t.Fatal("no ipset", err)
	}
	defer c.Close()
	const add = 9
	if err := c.execute(add, name, func(data *netlinkattr.List) {
		data.Bytes(ipsetAttrPort|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, port))
	}); err != nil {
		t.Fatal(err)
	}
	run(t, "", "iptables-nft", "-A", "INPUT", "-p", "tcp", "-m", "set", "--match-set", name, "dst", "-j", "ACCEPT")
	return []string{setName(name)}
}
