package nft

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Tracer tells of each rule that a packet matched, and of no packet beyond the limit.
func TestTracer(t *testing.T) {
	netns.EnterForTest(t)
	netns.NeedLinux(t, 5, 12) // Table.Owner
	if err := netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}); err != nil {
		t.Fatal(err)
	}
	c := dial(t)
	commitAll(t, c, Diff(nil, &Table{Family: FamilyIP, Name: "trace", Owner: true, Chains: []*Chain{
		{Name: "begin", Type: TypeFilter, Hook: HookOutput, Priority: -400, Rules: []Rule{NewRule(Match{Field: ThDport, Value: uint16(9)}, Limit{Rate: 1, Burst: 1}, SetNftrace)}},
		{Name: "check", Type: TypeFilter, Hook: HookOutput, Rules: []Rule{NewRule(Jump("inner"))}},
		{Name: "inner", Rules: []Rule{NewRule(Match{Field: MetaL4proto, Value: "tcp"}, Drop), NewRule(Counter{}), NewRule(Drop)}},
	}}))
	tracer, err := c.Trace()
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	listed, err := c.ReadTable(t.Context(), FamilyIP, "trace")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 3 {
		_, _ = conn.Write([]byte("x")) // dropped
	}
	var got []Trace
	for range 6 {
		step, err := tracer.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if step.ID == 0 || len(got) > 0 && step.ID != got[0].ID {
			t.Errorf("step %+v of another packet", step)
		}
		got = append(got, step)
	}
	from, to := conn.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort("127.0.0.1:9")
	handle := func(chain string, rule int) uint64 { return listed.Kernel.Handles[chain][rule] }
	want := []Trace{
		{Chain: "begin", Handle: handle("begin", 0), Source: from, Destination: to, Protocol: unix.IPPROTO_UDP, Hops: 64, Out: 1},
		{Chain: "begin"},
		{Chain: "begin", Verdict: Accept},
		{Chain: "check", Handle: handle("check", 0), Verdict: Jump("inner"), Source: from, Destination: to, Protocol: unix.IPPROTO_UDP, Hops: 64, Out: 1},
		{Chain: "inner", Handle: handle("inner", 1)},
		{Chain: "inner", Handle: handle("inner", 2), Verdict: Drop},
	}
	for i := range want {
		want[i].ID, want[i].Family, want[i].Table = got[0].ID, FamilyIP, "trace"
	}
	const ipHeader, udpHeader = 20, 8
	for i := range got {
		headers := got[i].Headers
		if hasThem := got[i].Source.IsValid(); hasThem && (len(headers) < ipHeader+udpHeader || headers[ipHeader+3] != 9) || !hasThem && headers != nil {
			t.Errorf("step %d has the headers %x", i, headers)
		}
		got[i].Headers = nil
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	t.Run("says that steps were lost", func(t *testing.T) {
		commitAll(t, c, Transaction{Steps: []Step{{Op: AddRules, Table: listed, Chain: &Chain{Name: "begin", Rules: []Rule{NewRule(SetNftrace)}}}}})
		if err := tracer.socket.join(unix.NFNLGRP_NFTRACE, 1); err != nil { // the smallest buffer that there is
			t.Fatal(err)
		}
		for range 100 {
			_, _ = conn.Write([]byte("x"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		for {
			step, err := tracer.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if step.Lost {
				return
			}
		}
	})
}

func FuzzDecodeTrace(f *testing.F) {
	seed := []byte{2, 0, 0, 0}
	f.Add(seed)
	f.Add(append(seed, 8, 0, unix.NFTA_TRACE_ID, 0, 1, 2, 3, 4))
	f.Add(append(seed, 24, 0, unix.NFTA_TRACE_NETWORK_HEADER, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2))
	f.Fuzz(func(t *testing.T, data []byte) {
		if step, err := decodeTrace(data); err == nil && step.Family != Family(data[0]) {
			t.Errorf("%+v", step)
		}
	})
}
