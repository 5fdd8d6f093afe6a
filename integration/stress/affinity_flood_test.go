package stress

import (
	"context"
	"encoding/binary"
	"flag"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// forgedClients is the number of forged addresses that dial the attacked Service.
// docs/measurements.md has the results with a million.
var forgedClients = flag.Int("forged-clients", 150_000, "number of forged SYNs that attack session affinity")

const (
	attackedService, quietService = 10, 20
	quietClients                  = 100
)

// TestAffinityFlood has forged SYNs fill the map of one Service while another one has clients, and takes an
// endpoint of each away.
func TestAffinityFlood(t *testing.T) {
	c := newCluster(t)
	c.dropTranslated(t)
	sticky := func(name string, number byte, pods ...byte) *model.ServicePort {
		p := service(name, model.TCP, model.IPv4, number, pods...)
		p.AffinityTimeout = 3 * time.Hour
		return p
	}
	c.sync(t, full(sticky("attacked", attackedService, 1, 2, 3), sticky("quiet", quietService, 1, 2, 3)))
	c.dialFrom(t, quietService, quietClients)
	before := c.clientsOf(t, "quiet")
	if len(before) != quietClients {
		t.Fatalf("the quiet Service has %d clients in its map, want %d", len(before), quietClients)
	}
	alone := c.syncTime(t, sticky("quiet", quietService, 1, 2, 3, 4))

	begin := time.Now()
	c.dialFrom(t, attackedService, *forgedClients)
	held := c.clientsOf(t, "attacked")
	t.Logf("%d SYNs in %v; the map holds %d clients", *forgedClients, time.Since(begin).Round(time.Millisecond), len(held))
	if len(held) > nft.DefaultSize || len(held) < min(*forgedClients, nft.DefaultSize)/2 {
		t.Errorf("the attacked Service has %d clients in its map, want at most %d and not far less", len(held), nft.DefaultSize)
	}

	quiet := c.syncTime(t, sticky("quiet", quietService, 2, 3, 4))
	attacked := c.syncTime(t, sticky("attacked", attackedService, 2, 3))
	t.Logf("Sync without the flood %v; an endpoint of the quiet Service goes %v, of the attacked one %v", alone, quiet, attacked)
	gone := podIP(model.IPv4, 1)
	c.awaitNoClientsOf(t, "attacked", gone)
	c.awaitNoClientsOf(t, "quiet", gone) // a Sync deletes them, but for those that it cannot read in time
	after := c.clientsOf(t, "quiet")
	for client, endpoint := range before {
		if endpoint != gone && after[client] != endpoint {
			t.Errorf("client %s was with %s, is with %v", client, endpoint, after[client])
		}
	}
}

// awaitNoClientsOf has the proxy work beside its Syncs until no client of a Service is with an endpoint.
func (c *cluster) awaitNoClientsOf(t *testing.T, service string, gone netip.Addr) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { c.backend.Watch(ctx) })
	defer watching.Wait()
	defer cancel()
	begin := time.Now()
	for {
		stale := 0
		for _, endpoint := range c.clientsOf(t, service) {
			if endpoint == gone {
				stale++
			}
		}
		switch {
		case stale == 0:
			t.Logf("its clients were deleted within %v", time.Since(begin).Round(time.Millisecond))
			return
		case time.Since(begin) > time.Minute:
			t.Fatalf("%d clients are with an endpoint that went a minute ago", stale)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dropTranslated drops packets after their destination was translated and affinity was
// noted, so that no pods need to be there.
func (c *cluster) dropTranslated(t *testing.T) {
	t.Helper()
	load := "table ip sink {\n\tchain forward {\n\t\ttype filter hook forward priority 10\n\t\tct status dnat drop\n\t}\n}\n"
	lab.Nft(t, c.Node, load, "-f", "-")
}

// dialFrom sends n SYNs to a Service, each from another address.
func (c *cluster) dialFrom(t *testing.T, number byte, n int) {
	t.Helper()
	to := clusterIP(model.IPv4, number)
	if err := c.Outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i := range n {
			// A dropped connection is not confirmed, so conntrack does not fill up.
			from := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x14000000+uint32(i))))
			if err := unix.Sendto(fd, syn(from, to), 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil && err != unix.ENOBUFS {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// clientsOf returns which endpoint each client in a Service's map is with.
func (c *cluster) clientsOf(t *testing.T, name string) map[netip.Addr]netip.Addr {
	t.Helper()
	for _, table := range c.backend.Tables() {
		for _, set := range table.Sets {
			if table.Family != nft.FamilyIP || set.Name != "affinity.shop."+name+".tcp" || !compiler.IsAffinityMap(set.Name) {
				continue
			}
			elements, err := c.rules.ReadElements(t.Context(), table.Family, table.Name, set)
			if err != nil {
				t.Fatal(err)
			}
			clients := map[netip.Addr]netip.Addr{}
			for _, e := range elements {
				client, _ := netip.AddrFromSlice([]byte(e.Key))
				endpoint, _ := netip.AddrFromSlice([]byte(e.Value[:4]))
				clients[client] = endpoint
			}
			return clients
		}
	}
	t.Fatalf("Service %s has no map of clients", name)
	return nil
}

// syncTime returns how long a Sync of the port took.
func (c *cluster) syncTime(t *testing.T, p *model.ServicePort) time.Duration {
	t.Helper()
	begin := time.Now()
	c.sync(t, only(p))
	return time.Since(begin).Round(10 * time.Microsecond)
}
