package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

// numberedAddr returns the i-th address of 10.<network>.0.0/16 and what follows.
func numberedAddr(network byte, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], 10<<24|uint32(network)<<16+uint32(i))
	return netip.AddrFrom4(b)
}

// putService puts a Service with two endpoints.
func putService(services, endpoints *Set, put func(*Set, Element), i int) {
	front := AddrData(numberedAddr(96, i)) + ProtoData(6) + PortData(80)
	put(services, Element{Key: front, Verdict: Goto("cluster-2"), Comment: fmt.Sprintf("default/service-%d", i)})
	for slot := range 2 {
		put(endpoints, Element{Key: front + IntegerData(uint32(slot)), Value: AddrData(numberedAddr(200, 2*i+slot)) + PortData(8080)})
	}
}

// manyServices returns a table with n Services.
func manyServices(n int) *Table {
	key := frontendKey(FamilyIP)
	services := &Set{Name: "service-ips", Key: key, Verdicts: true}
	endpoints := &Set{Name: "endpoints", Key: append(frontendKey(FamilyIP), Numgen{Mod: 2}), Data: Concat{IPDaddr, ThDport}}
	for i := range n {
		putService(services, endpoints, (*Set).Put, i)
	}
	return &Table{
		Family: FamilyIP, Name: "kube-proxy", Sets: []*Set{services, endpoints},
		Chains: []*Chain{
			{Name: "nat-prerouting", Type: TypeNAT, Hook: HookPrerouting, Priority: PriorityDstNAT, Rules: []Rule{NewRule(Vmap{key, "service-ips"})}},
			{Name: "cluster-2", Rules: []Rule{NewRule(DNAT(FamilyIP, endpoints.Key, "endpoints"))}},
		},
	}
}

// manyAddresses returns a table with one set of n addresses.
func manyAddresses(n int) *Table {
	set := &Set{Name: "cluster-ips", Key: Concat{IPDaddr}}
	for i := range n {
		set.Put(Element{Key: AddrData(numberedAddr(byte(i>>16), i&0xffff))})
	}
	return &Table{Family: FamilyIP, Name: "kube-proxy", Sets: []*Set{set}}
}

// The same 20,000 elements of a verdict map, encoded in three ways.
func BenchmarkEncodeElements(b *testing.B) {
	const n = 20_000
	set := manyServices(n).Sets[0]
	elements := set.Elements()
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		tx := Transaction{Steps: []Step{{Op: AddElements, Table: &Table{Family: FamilyIP, Name: "kube-proxy"}, Set: set, Elements: elements}}}
		for b.Loop() {
			if _, err := tx.encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("attributeencoder", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for first := 0; first < n; first += 400 {
				if _, err := encodeWithLibrary(elements[first : first+400]); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func encodeWithLibrary(elements []Element) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, "kube-proxy")
	ae.String(unix.NFTA_SET_ELEM_LIST_SET, "service-ips")
	ae.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) error {
		for _, e := range elements {
			ae.Nested(unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) error {
				ae.Nested(unix.NFTA_SET_ELEM_KEY, func(ae *netlink.AttributeEncoder) error {
					ae.Bytes(unix.NFTA_DATA_VALUE, []byte(e.Key))
					return nil
				})
				ae.Nested(unix.NFTA_SET_ELEM_DATA, func(ae *netlink.AttributeEncoder) error {
					ae.Nested(unix.NFTA_DATA_VERDICT, func(ae *netlink.AttributeEncoder) error {
						ae.Uint32(unix.NFTA_VERDICT_CODE, uint32(e.Verdict.Kind.kernel()))
						ae.String(unix.NFTA_VERDICT_CHAIN, e.Verdict.Chain)
						return nil
					})
					return nil
				})
				ae.Bytes(unix.NFTA_SET_ELEM_USERDATA, appendUdataString(nil, udataComment, e.Comment))
				return nil
			})
		}
		return nil
	})
	return ae.Encode()
}

func TestEncodeElements(t *testing.T) {
	t.Run("writes what the benchmarked encoder does", testEncodeElementsWritesWhatTheBenchmarkedEncoderDoes)
}

func testEncodeElementsWritesWhatTheBenchmarkedEncoderDoes(t *testing.T) {
	set := manyServices(400).Sets[0]
	theirs, err := encodeWithLibrary(set.Elements())
	if err != nil {
		t.Fatal(err)
	}
	ours := onlyMessage(t, Step{Op: AddElements, Table: &Table{Family: FamilyIP, Name: "kube-proxy"}, Set: set, Elements: set.Elements()})
	if string(ours[nfgenmsgLen:]) != string(theirs) {
		t.Errorf("ours has %d bytes, the library's %d, and they differ", len(ours)-nfgenmsgLen, len(theirs))
	}
}

func BenchmarkCommit(b *testing.B) {
	b.Run("cold 10,000 services", func(b *testing.B) {
		netns.EnterForTest(b)
		c := dial(b)
		table := manyServices(10_000)
		for b.Loop() {
			if _, err := c.Commit(b.Context(), Replace(table)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("one more among 10,000", func(b *testing.B) {
		netns.EnterForTest(b)
		c := dial(b)
		table := manyServices(10_000)
		d := NewDraft(FamilyIP, table.Name, "")
		for _, s := range table.Sets {
			d.AddSet(s)
		}
		for _, chain := range table.Chains {
			d.PutChain(chain)
		}
		commit := func() {
			if _, err := c.Commit(b.Context(), d.Transaction()); err != nil {
				b.Fatal(err)
			}
			d.Committed()
		}
		commit()
		for i := 10_000; b.Loop(); i++ {
			putService(table.Sets[0], table.Sets[1], d.Put, i)
			commit()
		}
	})
}

// A check of a table that is as it should be: by reading it and comparing the copy, and by comparing as it is listed.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{10_000, 50_000, 250_000} {
		table := manyAddresses(n)
		for _, way := range []struct {
			name  string
			check func(c *Conn) (Transaction, error)
		}{
			{"read and diff", func(c *Conn) (Transaction, error) {
				have, err := c.ReadTable(b.Context(), table.Family, table.Name)
				return Diff(have, table), err
			}},
			{"compare", func(c *Conn) (Transaction, error) {
				return c.Compare(context.Background(), table, CompareOptions{})
			}},
		} {
			b.Run(fmt.Sprintf("%s/%d", way.name, n), func(b *testing.B) {
				netns.EnterForTest(b)
				c := dial(b)
				commitAll(b, c, Replace(table))
				awaitRehash(b, c, table)
				peak := watchHeap()
				for b.Loop() {
					tx, err := way.check(c)
					if err != nil || !tx.Empty() {
						b.Fatalf("%v, %.100s", err, tx)
					}
				}
				b.ReportMetric(peak(), "peak-MB")
			})
		}
	}
}

// A map that is as it should be: compared as it is listed, or refilled. CompareOptions.RefillFrom chooses.
func BenchmarkRefill(b *testing.B) {
	for _, n := range []int{25_000, 50_000, 75_000, 100_000, 150_000, 250_000} {
		table := manyServices(n / 2)
		table.Sets, table.Chains = table.Sets[1:], nil
		for _, way := range []struct {
			name string
			from int
		}{{"compare", 0}, {"refill", 1}} {
			b.Run(fmt.Sprintf("%d/%s", n, way.name), func(b *testing.B) {
				netns.EnterForTest(b)
				c := dial(b)
				commitAll(b, c, Replace(table))
				awaitRehash(b, c, table)
				least := time.Duration(math.MaxInt64)
				for b.Loop() {
					before := process.ProcessorTime(b)
					tx, err := c.Compare(b.Context(), table, CompareOptions{RefillFrom: way.from})
					if err != nil || tx.Empty() == (way.from > 0) {
						b.Fatalf("%v, %.100s", err, tx)
					}
					commitAll(b, c, tx)
					least = min(least, process.ProcessorTime(b)-before)
				}
				b.ReportMetric(least.Seconds()*1e3, "min-cpu-ms")
			})
		}
	}
}

// watchHeap samples the heap and returns how far it grew, in MB, when asked.
func watchHeap() (growth func() float64) {
	used := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	before, peak := used(), uint64(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
				peak = max(peak, used())
			}
		}
	}()
	return func() float64 {
		close(stop)
		<-done
		return float64(max(peak, before)-before) / 1e6
	}
}

func BenchmarkReadTable(b *testing.B) {
	netns.EnterForTest(b)
	c := dial(b)
	if _, err := c.Commit(b.Context(), Replace(manyServices(10_000))); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := c.ReadTable(b.Context(), FamilyIP, "kube-proxy"); err != nil {
			b.Fatal(err)
		}
	}
}

// A table with a map and a chain for each of n Service ports, compared with itself.
func BenchmarkDiffManySets(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := &Table{Family: FamilyIP, Name: "kube-proxy"}
			for i := range n {
				affinity := &Set{Name: fmt.Sprintf("affinity.%d", i), Key: Concat{IPSaddr}, Data: Concat{IPDaddr, ThDport}, Dynamic: true}
				table.Sets = append(table.Sets, affinity)
				table.Chains = append(table.Chains, &Chain{Name: fmt.Sprintf("service-%d", i),
					Rules: []Rule{NewRule(DNAT(FamilyIP, affinity.Key, affinity.Name))}})
			}
			for b.Loop() {
				if tx := Diff(table, table); !tx.Empty() {
					b.Fatal(tx)
				}
			}
		})
	}
}
