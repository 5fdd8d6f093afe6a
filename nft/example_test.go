package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/netip"
	"time"

	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nft/nfttest"
)

// webTable sends connections to 192.0.2.1:80 to one of the given endpoints.
func webTable(endpoints ...string) *nft.Table {
	key := nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport}
	draw := append(key[:len(key):len(key)], nft.Numgen{Mod: uint32(len(endpoints))})

	web := &nft.Set{Name: "web", Key: draw, Data: nft.Concat{nft.IPDaddr, nft.ThDport}}
	address := netip.MustParseAddr("192.0.2.1")
	for slot, text := range endpoints {
		endpoint := netip.MustParseAddrPort(text)
		e, err := web.NewElement(nft.Values{address, "tcp", 80, slot}, endpoint.Addr(), endpoint.Port())
		if err != nil {
			log.Fatal(err)
		}
		web.Put(e)
	}
	return &nft.Table{
		Family: nft.FamilyIP,
		Name:   "example",
		Sets:   []*nft.Set{web},
		Chains: []*nft.Chain{{
			Name: "nat-prerouting", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT,
			Rules: []nft.Rule{nft.NewRule(nft.DNAT(nft.FamilyIP, draw, web.Name))},
		}},
	}
}

// A table is built of values and prints in nft's syntax.
func Example() {
	fmt.Print(webTable("10.0.0.1:8080", "10.0.0.2:8080"))
	// Output:
	// table ip example {
	// 	map web {
	// 		typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
	// 		elements = {
	// 			192.0.2.1 . tcp . 80 . 0 : 10.0.0.1 . 8080,
	// 			192.0.2.1 . tcp . 80 . 1 : 10.0.0.2 . 8080,
	// 		}
	// 	}
	//
	// 	chain nat-prerouting {
	// 		type nat hook prerouting priority dstnat; policy accept;
	// 		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @web
	// 	}
	// }
}

// Diff returns the steps from one table to another, which print as a script for nft -f.
func ExampleDiff() {
	have := webTable("10.0.0.1:8080", "10.0.0.2:8080")
	want := webTable("10.0.0.1:8080", "10.0.0.3:8080")
	fmt.Print(nft.Diff(have, want))
	// Output:
	// delete element ip example web {
	// 	192.0.2.1 . tcp . 80 . 1,
	// }
	// add element ip example web {
	// 	192.0.2.1 . tcp . 80 . 1 : 10.0.0.3 . 8080,
	// }
}

// A Draft remembers what changed since the last commit, and nothing is lost when a commit fails.
func ExampleDraft() {
	draft := nft.NewDraft(nft.FamilyIP, "example", "")
	blocked := draft.AddSet(&nft.Set{Name: "blocked", Key: nft.Concat{nft.IPSaddr}})
	draft.Put(blocked, nft.Element{Key: nft.AddrData(netip.MustParseAddr("192.0.2.1"))})
	fmt.Print("first, the whole table:\n", draft.Transaction())
	draft.Committed() // the kernel has it now

	draft.Put(blocked, nft.Element{Key: nft.AddrData(netip.MustParseAddr("192.0.2.2"))})
	fmt.Print("then, what changed:\n", draft.Transaction())
	draft.Committed()
	tx := draft.Transaction()
	fmt.Println("then, nothing:", tx.Empty())
	// Output:
	// first, the whole table:
	// add table ip example
	// delete table ip example
	// add table ip example
	// add set ip example blocked { typeof ip saddr; }
	// add element ip example blocked {
	// 	192.0.2.1,
	// }
	// then, what changed:
	// add element ip example blocked {
	// 	192.0.2.2,
	// }
	// then, nothing: true
}

// A program that keeps a table reads it at its start, and from then on commits the differences. A commit
// has its effect whole or not at all; a refusal names the rule or element.
func ExampleConn_Commit() {
	conn, err := nft.Dial(nft.Config{}) // the network namespace of this process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	have, err := conn.ReadTable(context.Background(), nft.FamilyIP, "example") // nil if there is none
	if err != nil {
		fmt.Println(err)
		return
	}
	want := webTable("10.0.0.1:8080", "10.0.0.2:8080")
	_, err = conn.Commit(context.Background(), nft.Diff(have, want))
	var refusal *nft.CommitError
	if errors.As(err, &refusal) {
		fmt.Println("the kernel refuses", refusal.Step, "with", refusal.Err)
	}
}

// One commit can change several tables of both families, in one instant.
func ExampleTransaction_Append() {
	var tx nft.Transaction
	tx.Append(nft.Remove(nft.FamilyIP, "old"))
	tx.Append(nft.Replace(&nft.Table{Family: nft.FamilyIP6, Name: "example"}))
	fmt.Print(tx)
	// Output:
	// add table ip old
	// delete table ip old
	// add table ip6 example
	// delete table ip6 example
	// add table ip6 example
}

// Keys and values are made of Go's own types, and checked against the type of the set.
func ExampleSet_NewElement() {
	services := &nft.Set{Name: "services", Key: nft.Concat{nft.IPDaddr, nft.MetaL4proto, nft.ThDport}, Verdicts: true}
	address := netip.MustParseAddr("192.0.2.1")
	e, err := services.NewElement(nft.Values{address, "tcp", 80}, nft.Goto("web"))
	if err != nil {
		log.Fatal(err)
	}
	e.Comment = "the web server"
	services.Put(e)
	fmt.Println(services.FormatElement(e))

	_, err = services.NewElement(nft.Values{address, "tcp", 80_000}, nft.Goto("web"))
	fmt.Println(errors.Is(err, nft.ErrInvalid), err)
	// Output:
	// 192.0.2.1 . tcp . 80 comment "the web server" : goto web
	// true nft: part 3 of ip daddr . meta l4proto . th dport: th dport cannot be 80000: not an integer from 0 to 65535 (key of map services)
}

// Reading needs CAP_NET_ADMIN, like everything that concerns rulesets.
func ExampleConn_ReadTable() {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	table, err := conn.ReadTable(context.Background(), nft.FamilyIP, "example")
	switch {
	case errors.Is(err, fs.ErrPermission):
		log.Fatal("run this as root: ", err)
	case err != nil:
		log.Fatal(err)
	case table == nil:
		log.Fatal("there is no such table")
	}
	fmt.Print(table) // as nft lists it
}

// A program whose table is large compares it while the kernel lists it, and repairs it when somebody has committed.
func ExampleConn_Compare() {
	ctx := context.Background()
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	want := webTable("10.0.0.1:8080", "10.0.0.2:8080")
	for compared := uint32(0); ; time.Sleep(50 * time.Millisecond) {
		generation, err := conn.Generation(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if generation == compared {
			continue
		}
		repair, err := conn.Compare(ctx, want, nft.CompareOptions{})
		if errors.Is(err, nft.ErrGenerationMoved) {
			continue // yet another commit
		}
		if err != nil {
			log.Fatal(err)
		}
		compared = generation
		if repair.Empty() {
			continue // somebody changed other tables
		}
		log.Printf("somebody changed the table; this repairs it:\n%s", repair)
		if _, err := conn.Commit(ctx, repair); err != nil {
			log.Fatal(err)
		}
	}
}

// dialFake returns a connection to nf_tables in memory. With an empty Config it would be the kernel's.
func dialFake() *nft.Conn {
	kernel := &nfttest.Kernel{}
	conn, err := nft.Dial(nft.Config{Open: kernel.Open})
	if err != nil {
		log.Fatal(err)
	}
	return conn
}

// commit carries out a transaction.
func commit(conn *nft.Conn, tx nft.Transaction) {
	if _, err := conn.Commit(context.Background(), tx); err != nil {
		log.Fatal(err)
	}
}

// show prints a table of the kernel.
func show(conn *nft.Conn, name string) {
	table, err := conn.ReadTable(context.Background(), nft.FamilyIP, name)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(table)
}

// A table with a base chain and a rule, as in
//
//	nft 'add table ip example
//	     add chain ip example input { type filter hook input priority filter; policy accept; }
//	     add rule ip example input tcp dport 22 ip saddr != 192.0.2.0/24 drop'
func Example_rule() {
	conn := dialFake()
	defer conn.Close()
	commit(conn, nft.Diff(nil, &nft.Table{Family: nft.FamilyIP, Name: "example", Chains: []*nft.Chain{{
		Name: "input", Type: nft.TypeFilter, Hook: nft.HookInput, Priority: nft.PriorityFilter,
		Rules: []nft.Rule{nft.NewRule(
			nft.Match{Field: nft.MetaL4proto, Value: "tcp"},
			nft.Match{Field: nft.ThDport, Value: 22},
			nft.Match{Field: nft.IPSaddr, Op: nft.NotEqual, Value: netip.MustParsePrefix("192.0.2.0/24")},
			nft.Drop,
		)},
	}}}))
	show(conn, "example")
	// Output:
	// table ip example {
	// 	chain input {
	// 		type filter hook input priority filter; policy accept;
	// 		tcp dport 22 ip saddr != 192.0.2.0/24 drop
	// 	}
	// }
}

// A set, elements that come and go, and a list of what it has.
func Example_set() {
	conn := dialFake()
	defer conn.Close()
	blocked := &nft.Set{Name: "blocked", Key: nft.Concat{nft.IPSaddr}}
	table := &nft.Table{Family: nft.FamilyIP, Name: "example", Sets: []*nft.Set{blocked}}
	commit(conn, nft.Diff(nil, table))

	element := func(text string) nft.Element {
		e, err := blocked.NewElement(nft.Values{netip.MustParseAddr(text)})
		if err != nil {
			log.Fatal(err)
		}
		return e
	}
	add := []nft.Element{element("192.0.2.1"), element("192.0.2.2"), element("192.0.2.3")}
	commit(conn, nft.Transaction{Steps: []nft.Step{{Op: nft.AddElements, Table: table, Set: blocked, Elements: add}}})
	commit(conn, nft.Transaction{Steps: []nft.Step{{Op: nft.DeleteElements, Table: table, Set: blocked, Elements: add[:1]}}})
	for e, err := range conn.Elements(context.Background(), nft.FamilyIP, "example", blocked) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(blocked.FormatElement(e))
	}
	// Output:
	// 192.0.2.2
	// 192.0.2.3
}

// A verdict map leads packets to chains by their destination.
func Example_verdictMap() {
	conn := dialFake()
	defer conn.Close()
	services := &nft.Set{Name: "services", Key: nft.Concat{nft.IPDaddr, nft.ThDport}, Verdicts: true}
	web, err := services.NewElement(nft.Values{netip.MustParseAddr("192.0.2.1"), 80}, nft.Goto("web"))
	if err != nil {
		log.Fatal(err)
	}
	services.Put(web)
	commit(conn, nft.Diff(nil, &nft.Table{Family: nft.FamilyIP, Name: "example", Sets: []*nft.Set{services}, Chains: []*nft.Chain{
		{Name: "web", Rules: []nft.Rule{nft.NewRule(nft.Counter{}, nft.Accept)}},
		{Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Rules: []nft.Rule{
			nft.NewRule(nft.Vmap{Key: services.Key, Map: "services"}),
		}},
	}}))
	show(conn, "example")
	// Output:
	// table ip example {
	// 	map services {
	// 		typeof ip daddr . th dport : verdict
	// 		elements = {
	// 			192.0.2.1 . 80 : goto web,
	// 		}
	// 	}
	//
	// 	chain forward {
	// 		type filter hook forward priority filter; policy accept;
	// 		ip daddr . th dport vmap @services
	// 	}
	//
	// 	chain web {
	// 		counter accept
	// 	}
	// }
}

// A monitor tells what a commit flushed and deleted.
func ExampleConn_Monitor() {
	ctx := context.Background()
	conn := dialFake()
	defer conn.Close()
	chain := &nft.Chain{Name: "c", Rules: []nft.Rule{nft.NewRule(nft.Drop)}}
	table := &nft.Table{Family: nft.FamilyIP, Name: "example", Chains: []*nft.Chain{chain}}
	commit(conn, nft.Diff(nil, table))

	monitor, err := conn.Monitor(ctx, "example")
	if err != nil {
		log.Fatal(err)
	}
	defer monitor.Close()
	commit(conn, nft.Transaction{Steps: []nft.Step{
		{Op: nft.FlushChain, Table: table, Chain: chain},
		{Op: nft.DeleteChain, Table: table, Chain: chain},
	}})
	for {
		event, err := monitor.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if event.Kind == nft.EventGeneration {
			fmt.Println("the ruleset has generation", event.Generation)
			return
		}
		fmt.Println(event)
	}
	// Output:
	// - rule ip example c drop
	// - chain ip example c
	// the ruleset has generation 2
}

func init() {
	nft.NewFake = func() nft.Config { return nft.Config{Open: new(nfttest.Kernel).Open} }
}
