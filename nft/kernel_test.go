package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func dial(t testing.TB) *Conn {
	t.Helper()
	c, err := Dial(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// initialNamespace is the namespace in which the tests were started. Its rules are not theirs.
var initialNamespace, _ = os.Stat(currentNamespace)

// runNft runs the nft program in the test's namespace; it is here to check this package, which does without.
func runNft(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := tryNft(t, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryNft(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	if here, err := os.Stat(currentNamespace); err != nil || os.SameFile(here, initialNamespace) {
		t.Fatal("this thread is not in a namespace of the test's own: a subtest has to call netns.EnterForTest itself")
	}
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("nft %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

// loadable returns a table without the rules that the nft program cannot load into this kernel. Before nft
// 1.0.6 looks up a protocol in a set with ranges, it swaps two bytes of the protocol's one, which Linux
// 6.12.117 refuses. This package swaps none.
func loadable(t testing.TB, table *Table) *Table {
	t.Helper()
	const lookup = `table ip t {
		set s { typeof meta l4proto . ip saddr; flags interval; }
		chain c { meta l4proto . ip saddr @s; }
	}`
	_, err := tryNft(t, lookup, "--check", "-f", "-")
	if err == nil {
		return table
	}
	if !strings.Contains(err.Error(), "Operation not supported") {
		t.Fatal(err)
	}
	t.Log("without the lookups in sets with ranges:", err)
	for _, c := range table.Chains {
		c.Rules = slices.DeleteFunc(c.Rules, func(r Rule) bool {
			return slices.ContainsFunc(r.Statements, func(s Statement) bool {
				in, is := s.(InSet)
				return is && table.Set(in.Set).Interval
			})
		})
	}
	return table
}

func frontendKey(f Family) Concat { return Concat{f.Daddr(), MetaL4proto, ThDport} }

// affinityUpdate is a rule that adds the endpoint of a packet to the map "affinity".
func affinityUpdate(f Family) Rule {
	return NewRule(Match{Field: MetaL4proto, Op: Equal, Value: ProtoData(unix.IPPROTO_TCP)},
		Update{Map: "affinity", Key: Concat{f.Saddr(), f.OriginalDaddr(), MetaL4proto, CTOriginalProtoDst}, Data: Concat{f.Daddr(), CTReplyProtoSrc}, Timeout: 3 * time.Hour})
}

// everything is a table that uses each thing this package can express.
func everything(f Family) *Table {
	addr, cidr, odd := netip.MustParseAddr("10.96.0.1"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/12")
	if f == FamilyIP6 {
		addr, cidr, odd = netip.MustParseAddr("fd00::1"), netip.MustParsePrefix("fd00:10::/32"), netip.MustParsePrefix("fd00::/45")
	}
	front := AddrData(addr) + ProtoData(unix.IPPROTO_TCP) + PortData(80)
	slot := func(n uint32) Data { return front + IntegerData(n) }
	key := frontendKey(f)
	random := func(n uint32) Concat { return append(frontendKey(f), Numgen{Mod: n}) }

	services := &Set{Name: "service-ips", Key: key, Verdicts: true, Comment: "frontends"}
	services.Put(Element{Key: front, Verdict: Goto("cluster-2"), Comment: "default/web:http"})
	services.Put(Element{Key: AddrData(addr) + ProtoData(unix.IPPROTO_UDP) + PortData(53), Verdict: Drop})
	services.Put(Element{Key: AddrData(addr) + ProtoData(unix.IPPROTO_SCTP) + PortData(9), Verdict: Jump("mark-for-masquerade")})
	endpoints := &Set{Name: "endpoints", Key: random(2), Data: Concat{f.Daddr(), ThDport}}
	endpoints.Put(Element{Key: slot(0), Value: AddrData(addr.Next()) + PortData(8080)})
	endpoints.Put(Element{Key: slot(1), Value: AddrData(addr.Next().Next()) + PortData(8081)})
	neighbours := &Set{Name: "neighbours", Key: random(2), Data: Concat{f.Daddr()}}
	neighbours.Put(Element{Key: slot(0), Value: AddrData(addr.Next())})
	byClient := append(frontendKey(f), JHash{Field: f.Saddr(), And: ThSport, Mod: 251, Seed: 0x5eed})
	quotedKey, quotedHash := Concat{f.Daddr(), IPQuotedProtocol, IPQuotedSport}, JHash{Field: IPQuotedDaddr, And: IPQuotedDport, Mod: 251, Seed: 0x5eed}
	icmp := []Statement{Match{Field: MetaL4proto, Value: "icmp"}, Match{Field: ICMPType, Value: ICMPDestinationUnreachable}, Jump("icmp-errors")}
	if f == FamilyIP6 {
		quotedKey, quotedHash = Concat{f.Daddr(), IP6QuotedProtocol, IP6QuotedSport}, JHash{Field: IP6QuotedDaddr, And: IP6QuotedDport, Mod: 251, Seed: 0x5eed}
		icmp = []Statement{Match{Field: MetaL4proto, Value: "ipv6-icmp"}, Match{Field: ICMPv6Type, Value: ICMPv6PacketTooBig}, Jump("icmp-errors")}
	}
	quoted := &Set{Name: "quoted", Key: append(slices.Clip(quotedKey), Numgen{Mod: 2}), Data: Concat{f.Daddr()}}
	quoted.Put(Element{Key: slot(0), Value: AddrData(addr.Next())})
	ips := &Set{Name: "cluster-ips", Key: Concat{f.Daddr()}}
	ips.Put(Element{Key: AddrData(addr), Comment: "one"})
	ports := &Set{Name: "ports", Key: Concat{ThDport}, Data: Concat{ThDport}}
	ports.Put(Element{Key: PortData(1), Value: PortData(2)})
	protocols := &Set{Name: "protocols", Key: Concat{MetaL4proto}}
	protocols.Put(Element{Key: ProtoData(unix.IPPROTO_UDP)})
	hairpin := &Set{Name: "hairpin", Key: Concat{f.Saddr(), f.Daddr()}}
	hairpin.Put(Element{Key: AddrData(addr) + AddrData(addr)})

	sources := &Set{Name: "sources", Key: append(frontendKey(f), f.Saddr()), Interval: true}
	sources.Put(Element{Key: front + AddrData(cidr.Addr()), KeyEnd: front + AddrData(LastAddr(cidr)), Comment: "a prefix"})
	sources.Put(Element{Key: front + AddrData(addr), KeyEnd: front + AddrData(addr)})
	sources.Put(Element{Key: front + AddrData(addr.Next()), KeyEnd: front + AddrData(addr.Next().Next().Next())})

	counted := &Set{Name: "counted", Key: frontendKey(f), Counter: true}
	counted.Put(Element{Key: front, Comment: "default/web:http"})
	affinity := &Set{Name: "affinity", Key: append(Concat{f.Saddr()}, key...), Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1 << 20}
	updates := &Chain{Name: "affinity-update", Rules: []Rule{
		NewRule(DNAT(f, affinity.Key, affinity.Name)),
	}}
	if f == FamilyIP { // the nft program 1.0.6 aborts when it is to load one for IPv6
		updates.Rules = append(updates.Rules, affinityUpdate(f))
	}

	return &Table{
		Family: f, Name: "kube-proxy", Comment: "everything",
		Sets: []*Set{services, endpoints, neighbours, quoted, ips, ports, protocols, hairpin, sources, counted, affinity},
		Chains: []*Chain{
			{Name: "nat-prerouting", Type: TypeNAT, Hook: HookPrerouting, Priority: PriorityDstNAT, Rules: []Rule{NewRule(Jump("services"))}},
			{Name: "filter-forward", Type: TypeFilter, Hook: HookForward, Priority: PriorityFilter, Rules: []Rule{
				NewRule(Match{Field: CTState, Value: CTStateNew}, InSet{Concat{f.Daddr()}, Equal, "cluster-ips"}, Reject{Family: f}),
				NewRule(InSet{Concat{f.Daddr()}, NotEqual, "cluster-ips"}, Counter{}, Return),
				NewRule(Match{Field: f.Daddr(), Op: Equal, Value: odd}, Drop),
				NewRule(InSet{append(frontendKey(f), f.Saddr()), NotEqual, "sources"}, Drop),
			}},
			{Name: "filter-output", Type: TypeFilter, Hook: HookOutput, Priority: PriorityDstNAT + 10},
			{Name: "filter-prerouting", Type: TypeFilter, Hook: HookPrerouting, Priority: PriorityMangle, Rules: []Rule{
				NewRule(Match{Field: CTState, Value: CTStateEstablished | CTStateRelated}, Return),
				NewRule(Dup{Key: byClient, Map: "neighbours"}, Drop),
				NewRule(Match{Field: MetaL4proto, Op: NotEqual, Value: ProtoData(unix.IPPROTO_TCP)}, Return),
				NewRule(Match{Field: MetaL4proto, Value: ProtoData(unix.IPPROTO_TCP)}, Match{Field: TCPFlags, Value: TCPFlagSYN}, Return),
				NewRule(Match{Field: f.TTL(), Op: Less, Value: 8}, Drop),
				NewRule(SetTTL(f, 8)),
				NewRule(Dup{Key: append(frontendKey(f), JHash{Field: f.Saddr(), And: ThSport, Mod: 251, Seed: 0x5eed, Offset: 251}), Map: "neighbours"}, Drop),
				NewRule(icmp...),
			}},
			{Name: "icmp-errors", Rules: []Rule{NewRule(Dup{Key: append(quotedKey, quotedHash), Map: "quoted"}, Drop), NewRule(Dup{Addr: Constant(f.Loopback().Addr().AsSlice())})}},
			{Name: "nat-postrouting", Type: TypeNAT, Hook: HookPostrouting, Priority: PrioritySrcNAT, Rules: []Rule{
				NewRule(MatchMark(0x4000, 0x4000), FlipMark(0x4000), Masquerade),
				NewRule(Match{Field: CTStatus, Value: CTStatusDNAT}, InSet{Concat{f.Saddr(), f.Daddr()}, Equal, "hairpin"}, Masquerade),
			}},
			{Name: "cluster-2", Rules: []Rule{
				NewRule(Match{Field: f.Saddr(), Op: NotEqual, Value: cidr}, Jump("mark-for-masquerade")),
				NewRule(DNAT(f, random(2), "endpoints")),
				NewRule(DNAT(f, append(frontendKey(f), JHash{Field: f.Saddr(), Mod: 3, Seed: 0x5eed}), "endpoints")),
				NewRule(DNAT(f, byClient, "endpoints")),
				NewRule(DNAT(f, random(1), "endpoints")),
			}},
			updates,
			{Name: "mark-for-masquerade", Comment: "sets the mark", Rules: []Rule{NewRule(SetMark(0x4000))}},
			{Name: "services", Rules: []Rule{
				{Statements: []Statement{Vmap{key, "service-ips"}}, Comment: "to a Service's address"},
				NewRule(Match{Field: FibDaddrType, Op: Equal, Value: IntegerData(unix.RTN_LOCAL)}, Match{Field: f.Daddr(), Op: NotEqual, Value: f.Loopback()}, Match{Field: MetaL4proto, Op: Equal, Value: ProtoData(unix.IPPROTO_TCP)}, Accept),
				NewRule(Match{Field: FibSaddrType, Op: NotEqual, Value: IntegerData(unix.RTN_LOCAL)}, Match{Field: ThDport, Op: Equal, Value: PortData(53)}, Return),
				NewRule(Match{Field: MetaIifname, Op: NotEqual, Value: "cbr0"}, Match{Field: MetaOifname, Op: Equal, Value: "veth*"}, Match{Field: f.Saddr(), Op: Equal, Value: netip.PrefixFrom(addr, addr.BitLen())}, Return),
			}},
		},
	}
}

// text prints a table with its sets and chains in order, to compare by.
func text(t *Table) string {
	slices.SortFunc(t.Sets, func(a, b *Set) int { return strings.Compare(a.Name, b.Name) })
	SortChains(t.Chains)
	return t.String()
}

func TestCommit(t *testing.T) {
	t.Run("leaves in the kernel what was committed", testWhatTheKernelHoldsIsWhatWasCommitted)
	t.Run("takes the largest elements", testCommitTakesTheLargestElements)
	t.Run("tells whether it changed anything, beside other commits", testCommitTellsWhetherItChangedAnything)
	t.Run("has the kernel describe one object at most", testCommitHasTheKernelDescribeOneObject)
	t.Run("deletes a table of many chains", testCommitDeletesATableOfManyChains)
	t.Run("encodes as the nft program does", testOurEncodingIsTheOneOfTheNftProgram)
	t.Run("that is refused names the element and changes nothing", testARefusedTransactionNamesTheElementAndChangesNothing)
	t.Run("that is too large for the socket says what it needs", testBatchTooLargeForTheSocketSaysWhatItNeeds)
}

func testWhatTheKernelHoldsIsWhatWasCommitted(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, f := range Families {
		want := everything(f)
		if _, err := c.Commit(t.Context(), Diff(nil, want)); err != nil {
			t.Fatal(err)
		}
		got, err := c.ReadTable(t.Context(), f, "kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text(want), text(got)); diff != "" {
			t.Errorf("%s: read back (-want +got):\n%s", f, diff)
		}
		if tx := Diff(got, want); !tx.Empty() {
			t.Errorf("%s: the diff with what was committed is not empty:\n%s", f, tx)
		}
	}
}

// kube-proxy has some chains for each Service. An echo of their deletion would not fit into the socket.
func testCommitDeletesATableOfManyChains(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	foreign := &Table{Family: FamilyIP, Name: "kube-proxy"}
	for i := range 10_000 {
		chain := &Chain{Name: fmt.Sprintf("endpoint-ABCDEFGH-namespace/service/tcp/http__10.1.0.1/%d", i)}
		chain.Rules = []Rule{{Statements: []Statement{Counter{}}, Comment: "a rule"}, {Statements: []Statement{Accept}}}
		foreign.Chains = append(foreign.Chains, chain)
	}
	for name, tx := range map[string]Transaction{"Remove": Remove(FamilyIP, foreign.Name), "Replace": Replace(&Table{Family: FamilyIP, Name: foreign.Name})} {
		commitAll(t, c, Diff(nil, foreign))
		if stats, err := c.Commit(t.Context(), tx); err != nil || stats.Unchanged {
			t.Errorf("%s: %+v, %v", name, stats, err)
		}
		commitAll(t, c, Remove(FamilyIP, foreign.Name))
	}
}

func testCommitTakesTheLargestElements(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	const n = 1000
	want := largestElements(n)
	commitAll(t, c, Diff(nil, want))
	if tx := Diff(readBack(t, c, want.Family, want.Name), want); !tx.Empty() {
		t.Errorf("what was committed differs by\n%.1000s", tx)
	}
	elements := want.Sets[0].Elements()
	commitAll(t, c, Transaction{Steps: []Step{{Op: DeleteElements, Table: want, Set: want.Sets[0], Elements: elements[1:]}}})
	if got := readBack(t, c, want.Family, want.Name); got.Sets[0].Len() != 1 {
		t.Errorf("after all but one were deleted, the kernel has %d elements", got.Sets[0].Len())
	}
}

func testCommitTellsWhetherItChangedAnything(t *testing.T) {
	netns.NeedLinux(t, 5, 10)
	netns.EnterForTest(t)
	c := dial(t)
	table := manyAddresses(2000)
	commitAll(t, c, Replace(table))
	others, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	defer others.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	busy.Go(func() {
		for ctx.Err() == nil {
			if _, err := others.Commit(t.Context(), Replace(&Table{Family: FamilyIP6, Name: "other"})); err != nil {
				t.Error(err)
			}
		}
	})
	set := table.Sets[0]
	all := set.Elements()
	for i := range 200 {
		add := Step{Op: AddElements, Table: table, Set: set, Elements: all}
		remove := Step{Op: DeleteElements, Table: table, Set: set, Elements: all[i : i+1]}
		for _, tc := range []struct {
			step Step
			want bool
		}{{remove, false}, {add, false}, {add, true}} {
			stats, err := c.Commit(t.Context(), Transaction{Steps: []Step{tc.step}})
			if err != nil || stats.Unchanged != tc.want {
				t.Fatalf("%.60s: Unchanged = %v, %v; want %v", tc.step, stats.Unchanged, err, tc.want)
			}
		}
	}
}

// described is a socket that counts the objects and elements that the kernel describes to it.
type described struct {
	Socket
	count int
}

func (d *described) Receive(buffer []byte) (n int, truncated bool, err error) {
	n, truncated, err = d.Socket.Receive(buffer)
	if err == nil {
		err = eachMessage(buffer[:n], func(r reply) error {
			if r.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES && r.Header.Type != newGeneration {
				d.count++
			}
			return nil
		})
	}
	return n, truncated, err
}

// The echo of a message describes each element in it, in 8 KB of kernel memory.
func testCommitHasTheKernelDescribeOneObject(t *testing.T) {
	netns.EnterForTest(t)
	here, err := holdNamespace(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	told := &described{}
	c, err := Dial(Config{Open: func() (Socket, error) {
		told.Socket, err = here.openKernel()
		return told, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table := manyAddresses(2000)
	set := table.Sets[0]
	for _, tc := range []struct {
		name string
		tx   Transaction
		want int
	}{
		{"a new table", Diff(nil, table), 1},
		{"elements that go", Transaction{Steps: []Step{{Op: DeleteElements, Table: table, Set: set, Elements: set.Elements()}}}, 0},
		{"elements of a set that is there", Transaction{Steps: []Step{{Op: AddElements, Table: table, Set: set, Elements: set.Elements()}}}, 0},
	} {
		told.count = 0
		commitAll(t, c, tc.tx)
		if told.count != tc.want {
			t.Errorf("%s: the kernel described %d objects and elements, want %d", tc.name, told.count, tc.want)
		}
	}
}

// listedLines splits a listing of nft and sorts it: sets are listed in the order of a hash
// with a random seed.
func listedLines(listing string) []string {
	lines := strings.FieldsFunc(listing, func(r rune) bool { return strings.ContainsRune("\n,{}", r) })
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(line), "elements = ")
	}
	slices.Sort(lines)
	return lines
}

func testOurEncodingIsTheOneOfTheNftProgram(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, f := range Families {
		want := loadable(t, everything(f))
		if _, err := c.Commit(t.Context(), Replace(want)); err != nil {
			t.Fatal(err)
		}
		ours := runNft(t, "", "-s", "list", "table", f.String(), "kube-proxy")
		runNft(t, "delete table "+f.String()+" kube-proxy\n"+want.String(), "-f", "-")
		theirs := runNft(t, "", "-s", "list", "table", f.String(), "kube-proxy")
		if diff := cmp.Diff(listedLines(theirs), listedLines(ours)); diff != "" {
			t.Errorf("%s: nft lists (-loaded by nft +committed by us):\n%s", f, diff)
		}
		got, err := c.ReadTable(t.Context(), f, "kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text(want), text(got)); diff != "" {
			t.Errorf("%s: loaded by nft, read back by us (-want +got):\n%s", f, diff)
		}
	}
}

func testARefusedTransactionNamesTheElementAndChangesNothing(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, f := range Families {
		if _, err := c.Commit(t.Context(), Diff(nil, everything(f))); err != nil {
			t.Fatal(err)
		}
	}
	before := runNft(t, "", "list", "ruleset")
	good, bad := everything(FamilyIP), everything(FamilyIP6)
	good.Set("cluster-ips").Put(Element{Key: AddrData(netip.MustParseAddr("10.9.9.9"))})
	bad.Sets[0].Put(Element{Key: AddrData(netip.MustParseAddr("fd00::9")) + ProtoData(6) + PortData(80), Verdict: Goto("nowhere"), Comment: "default/broken"})
	tx := Diff(everything(FamilyIP), good)
	tx.Append(Diff(everything(FamilyIP6), bad))
	_, err := c.Commit(t.Context(), tx)
	var refused *CommitError
	if !errors.As(err, &refused) || !errors.Is(err, unix.ENOENT) {
		t.Fatalf("Commit = %v, want a CommitError with ENOENT", err)
	}
	const want = `add element ip6 kube-proxy service-ips { fd00::9 . tcp . 80 comment "default/broken" : goto nowhere }`
	if refused.Step != want {
		t.Errorf("refused step = %s, want %s", refused.Step, want)
	}
	if diff := cmp.Diff(before, runNft(t, "", "list", "ruleset")); diff != "" {
		t.Errorf("a refused transaction changed the kernel:\n%s", diff)
	}
	good.Chains = append(good.Chains, &Chain{Name: "loop", Rules: []Rule{NewRule(Jump("loop"))}}, &Chain{Name: "into", Type: TypeNAT, Hook: HookOutput, Rules: []Rule{NewRule(Jump("loop"))}})
	if _, err := c.Commit(t.Context(), Diff(everything(FamilyIP), good)); !errors.As(err, &refused) {
		t.Errorf("a jump loop: Commit = %v, want a CommitError", err)
	} else {
		t.Log(err)
	}
	if _, err := c.Commit(t.Context(), Remove(FamilyIP, "kube-proxy")); err != nil {
		t.Errorf("the connection does not work after a refusal: %v", err)
	}
}
