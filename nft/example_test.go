package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/netip"

	"github.com/nftproxy/nftproxy/nft"
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
			Rules: []nft.Rule{nft.NewRule(nft.DNAT{Family: nft.FamilyIP, Key: draw, Map: web.Name})},
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

// A program whose table is large compares it while the kernel lists it, and repairs it when somebody else has committed.
func ExampleConn_Compare() {
	ctx := context.Background()
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	commits, err := conn.Monitor(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	defer commits.Close()
	want := webTable("10.0.0.1:8080", "10.0.0.2:8080")
	for {
		commit, err := commits.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		repair, err := conn.Compare(ctx, want, nft.CompareOptions{})
		if errors.Is(err, nft.ErrGenerationMoved) {
			continue // yet another commit, of which there is an event too
		}
		if err != nil {
			log.Fatal(err)
		}
		if repair.Empty() {
			continue // ours, or of other tables
		}
		log.Printf("%v changed the table; this repairs it:\n%s", commit, repair)
		if _, err := conn.Commit(ctx, repair); err != nil {
			log.Fatal(err)
		}
	}
}
