package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
)

// cluster describes the Services of a benchmark. They have a ClusterIP each.
type cluster struct {
	services, endpoints int
	// nowhere leaves out on which node the endpoints are. Otherwise one in a hundred is on this one.
	nowhere bool
	// affinity is the time of session affinity; 0 for none.
	affinity time.Duration
	// counted has the tables count Services.
	counted bool
}

func (c cluster) config() compiler.Config {
	config := compiler.Default()
	config.CountServices = c.counted
	return config
}

func (c cluster) String() string {
	name := fmt.Sprintf("%dx%d", c.services, c.endpoints)
	if c.nowhere {
		name += "-nodes-unknown"
	}
	if c.affinity > 0 {
		name += "-affinity"
	}
	if c.counted {
		name += "-counted"
	}
	return name
}

// numbered returns the i-th address from first on.
func numbered(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i))
	return netip.AddrFrom4(b)
}

// port returns the i-th Service port.
func (c cluster) port(i int) *model.ServicePort {
	p := &model.ServicePort{
		ID:        model.PortID{Namespace: "default", Service: fmt.Sprintf("service-%d", i), Protocol: model.TCP, Family: model.IPv4},
		ClusterIP: numbered("10.96.0.0", i), Port: 80, AffinityTimeout: c.affinity,
	}
	for slot := range c.endpoints {
		n := i*c.endpoints + slot
		local := n%100 == 0
		p.Cluster = append(p.Cluster, model.Endpoint{
			AddrPort: netip.AddrPortFrom(numbered("10.128.0.1", n), 8080), Local: !c.nowhere && local, Remote: !c.nowhere && !local,
		})
	}
	return p
}

// changes returns all of the cluster.
func (c cluster) changes() *model.Changes {
	changes := &model.Changes{Full: true, Ports: make(map[model.PortID]*model.ServicePort, c.services), Node: &model.Node{Name: "node-1"},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, ServiceCIDRsChanged: true}
	for i := range c.services {
		p := c.port(i)
		changes.Ports[p.ID] = p
	}
	return changes
}

// phases says where the time of Syncs goes.
type phases struct {
	sync, compile, encode, kernel []time.Duration
	elements                      int
}

func (p *phases) hooks() Hooks {
	return Hooks{
		OnCompile: func(d time.Duration) { p.compile = append(p.compile, d) },
		OnCommit: func(s nft.CommitStats) {
			p.encode, p.kernel = append(p.encode, s.Encode), append(p.kernel, s.Kernel)
			p.elements = s.Elements
		},
	}
}

// reportTimes reports the minimum, which other users of the machine disturb least, and the median. It returns the
// minimum.
func reportTimes(b *testing.B, samples []time.Duration, name string) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	b.ReportMetric(samples[0].Seconds()*1e3, name+"-min-ms")
	b.ReportMetric(samples[len(samples)/2].Seconds()*1e3, name+"-ms")
	return samples[0]
}

// report reports the phases and returns the shortest Sync.
func (p *phases) report(b *testing.B) time.Duration {
	b.ReportMetric(float64(p.elements), "elements")
	if len(p.kernel) == len(p.sync) {
		rest := slices.Clone(p.sync)
		for i := range rest {
			rest[i] -= p.compile[i] + p.encode[i] + p.kernel[i]
		}
		reportTimes(b, rest, "rest")
	}
	reportTimes(b, p.compile, "compile")
	reportTimes(b, p.encode, "encode")
	reportTimes(b, p.kernel, "kernel")
	return reportTimes(b, p.sync, "sync")
}

// floor returns how long the kernel takes to carry out what makes the tables in a namespace that has none: a lower
// bound of each first Sync. The transaction is encoded before.
func floor(b *testing.B, tables []*nft.Table) time.Duration {
	var tx nft.Transaction
	for _, t := range tables {
		tx.Append(nft.Replace(t))
	}
	stats, err := namespaceConn(b).Commit(b.Context(), tx)
	if err != nil {
		b.Fatal(err)
	}
	return stats.Kernel
}

// BenchmarkFirstSync measures the first Sync into an empty namespace: objects in memory until the kernel has committed.
// floor-ms is the time in which the kernel carries out the same batch. Endpoints with unknown nodes show what it is
// worth to know them: the set hairpin then holds the few on this one. sync/floor is the ratio of the minima.
func BenchmarkFirstSync(b *testing.B) {
	const affinity = 3 * time.Hour
	for _, c := range []cluster{
		{services: 10_000, endpoints: 2}, {services: 44_000, endpoints: 2}, {services: 5_000, endpoints: 50},
		{services: 10_000, endpoints: 2, nowhere: true}, {services: 5_000, endpoints: 50, nowhere: true},
		{services: 1_000, endpoints: 2, affinity: affinity}, {services: 5_000, endpoints: 2, affinity: affinity},
		{services: 44_000, endpoints: 2, counted: true},
	} {
		b.Run(c.String(), func(b *testing.B) {
			changes := c.changes()
			var p phases
			var floors []time.Duration
			// Other time says little on a busy machine.
			var processor time.Duration
			for b.Loop() {
				b.StopTimer()
				backend, err := NewBackend(namespaceConn(b), c.config(), p.hooks())
				if err != nil {
					b.Fatal(err)
				}
				used, begin := process.ProcessorTime(b), time.Now()
				b.StartTimer()
				if err := backend.Sync(b.Context(), changes); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				p.sync = append(p.sync, time.Since(begin))
				processor += process.ProcessorTime(b) - used
				floors = append(floors, floor(b, backend.Tables()))
				b.StartTimer()
			}
			whole := p.report(b)
			lower := reportTimes(b, floors, "floor")
			b.ReportMetric(processor.Seconds()*1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(whole.Seconds()/lower.Seconds(), "sync/floor")
		})
	}
}

// BenchmarkRestart measures the first Sync of a process that starts over the tables of an earlier one.
// In "changed" one Service in a hundred has another endpoint in one slot, one more endpoint, or one
// less; in the others the tables are as wanted. restart/start is the ratio of the minima, of the restarts and of the first
// Syncs before them.
func BenchmarkRestart(b *testing.B) {
	for _, c := range []cluster{{services: 10_000, endpoints: 2}, {services: 44_000, endpoints: 2}, {services: 5_000, endpoints: 50}} {
		same := c.changes()
		for _, state := range []struct {
			name string
			// before is the state of the earlier process.
			before *model.Changes
		}{{"the same", same}, {"changed", c.changed()}} {
			b.Run(c.String()+"/"+state.name, func(b *testing.B) {
				conn := namespaceConn(b)
				var p phases
				var starts, startsCPU, restartsCPU []time.Duration
				for b.Loop() {
					b.StopTimer()
					if err := Cleanup(b.Context(), conn, ""); err != nil {
						b.Fatal(err)
					}
					used := process.ProcessorTime(b)
					starts = append(starts, syncOnce(b, conn, c, Hooks{}, state.before))
					startsCPU = append(startsCPU, process.ProcessorTime(b)-used)
					time.Sleep(rehashTime)
					used = process.ProcessorTime(b)
					b.StartTimer()
					p.sync = append(p.sync, syncOnce(b, conn, c, p.hooks(), same))
					b.StopTimer()
					restartsCPU = append(restartsCPU, process.ProcessorTime(b)-used)
					b.StartTimer()
				}
				restart, start := p.report(b), reportTimes(b, starts, "start")
				b.ReportMetric(restart.Seconds()/start.Seconds(), "restart/start")
				cpu := reportTimes(b, restartsCPU, "cpu")
				b.ReportMetric(cpu.Seconds()/reportTimes(b, startsCPU, "start-cpu").Seconds(), "cpu-restart/start")
			})
		}
	}
}

// rehashTime is longer than the kernel needs to rehash sets that have just grown.
const rehashTime = time.Second

// syncOnce returns how long the first Sync of a new backend takes.
func syncOnce(b *testing.B, conn *nft.Conn, c cluster, hooks Hooks, changes *model.Changes) time.Duration {
	backend, err := NewBackend(conn, c.config(), hooks)
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	begin := time.Now()
	if err := backend.Sync(b.Context(), changes); err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// changed returns changes with one Service in a hundred different.
func (c cluster) changed() *model.Changes {
	changes := c.changes()
	for i := 0; i < c.services; i += 100 {
		p := c.port(i)
		switch i / 100 % 3 {
		case 0:
			p.Cluster[0].AddrPort = netip.AddrPortFrom(numbered("10.200.0.1", i), 8080)
		case 1:
			p.Cluster = p.Cluster[1:]
		case 2:
			p.Cluster = append(p.Cluster, model.Endpoint{AddrPort: netip.AddrPortFrom(numbered("10.200.0.1", i), 8080), Remote: true})
		}
		changes.Ports[p.ID] = p
	}
	return changes
}

// BenchmarkOneChange measures a change among many Services: kernel-ms is the part of the kernel, which validates the
// whole table when the change has elements with a verdict.
func BenchmarkOneChange(b *testing.B) {
	for _, c := range []cluster{
		{services: 100, endpoints: 2}, {services: 10_000, endpoints: 2}, {services: 44_000, endpoints: 2}, {services: 5_000, endpoints: 50},
		{services: 5_000, endpoints: 2, affinity: 3 * time.Hour}, {services: 44_000, endpoints: 2, counted: true},
	} {
		b.Run(c.String(), func(b *testing.B) {
			var p phases
			backend, err := NewBackend(namespaceConn(b), c.config(), p.hooks())
			if err != nil {
				b.Fatal(err)
			}
			if err := backend.Sync(b.Context(), c.changes()); err != nil {
				b.Fatal(err)
			}
			b.Run("endpoint-replaced", func(b *testing.B) {
				p.benchmark(b, backend, func(i int) *model.ServicePort {
					port := c.port(c.services / 2)
					port.Cluster[1].AddrPort = netip.AddrPortFrom(numbered("10.200.0.1", i), 8080)
					return port
				})
			})
			b.Run("endpoint-more-or-less", func(b *testing.B) {
				p.benchmark(b, backend, func(i int) *model.ServicePort {
					port := c.port(c.services / 2)
					if i%2 == 1 {
						port.Cluster = append(port.Cluster, model.Endpoint{AddrPort: netip.MustParseAddrPort("10.200.0.1:8080"), Remote: true})
					}
					return port
				})
			})
			b.Run("external-ip-first-or-last", func(b *testing.B) { // the chains that find Services are called for all packets, or not
				p.benchmark(b, backend, func(i int) *model.ServicePort {
					port := c.port(c.services / 2)
					if i%2 == 1 {
						port.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
					}
					return port
				})
			})
			b.Run("service-more", func(b *testing.B) {
				p.benchmark(b, backend, func(i int) *model.ServicePort { return c.port(c.services + i) })
			})
		})
	}
}

// benchmark measures Syncs with one port each, the i-th of which is port(i).
func (p *phases) benchmark(b *testing.B, backend *Backend, port func(i int) *model.ServicePort) {
	*p = phases{}
	i := 0
	for b.Loop() {
		i++
		changed := port(i)
		changes := &model.Changes{Ports: map[model.PortID]*model.ServicePort{changed.ID: changed}}
		begin := time.Now()
		if err := backend.Sync(b.Context(), changes); err != nil {
			b.Fatal(err)
		}
		p.sync = append(p.sync, time.Since(begin))
	}
	p.report(b)
}
