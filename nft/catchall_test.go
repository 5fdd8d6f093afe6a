package nft

import (
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// readBack reads the table or ends the test.
func readBack(t testing.TB, c *Conn, family Family, name string) *Table {
	t.Helper()
	got, err := c.ReadTable(t.Context(), family, name)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// checkRepaired commits the difference between what the kernel holds and want, in one transaction that replaces
// nothing, and then finds none.
func checkRepaired(t *testing.T, c *Conn, want *Table) Transaction {
	t.Helper()
	tx := Diff(readBack(t, c, want.Family, want.Name), want)
	if tx.Empty() {
		t.Fatal("no difference was found")
	}
	if tx.AddsTable() {
		t.Errorf("the table is replaced:\n%s", tx)
	}
	if _, err := c.Commit(t.Context(), tx); err != nil {
		t.Fatalf("%v\nin\n%s", err, tx)
	}
	if rest := Diff(readBack(t, c, want.Family, want.Name), want); !rest.Empty() {
		t.Errorf("after the repair there is still:\n%s", rest)
	}
	return tx
}

// affinityElements reads what packets added to the affinity map.
func affinityElements(t *testing.T, c *Conn, table *Table) []Element {
	t.Helper()
	elements, err := c.ReadElements(t.Context(), table.Family, table.Name, table.Set("affinity"))
	if err != nil {
		t.Fatal(err)
	}
	return elements
}

func TestCatchAll(t *testing.T) {
	t.Run("of somebody else is deleted", testCatchAllOfSomebodyElseIsDeleted)
	t.Run("that is wanted is committed and listed", testCatchAllThatIsWantedIsCommittedAndListed)
}

func testCatchAllOfSomebodyElseIsDeleted(t *testing.T) {
	for _, tc := range []struct{ set, element string }{
		{"service-ips", "* : drop"},
		{"endpoints", "* : 10.0.0.9 . 80"},
		{"cluster-ips", "*"},
		{"cluster-ips", `* comment "everybody"`},
		{"sources", "*"},
		{"affinity", "* : 10.0.0.9 . 80"},
	} {
		t.Run(tc.set+" { "+tc.element+" }", func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			want := everything(FamilyIP)
			commitAll(t, c, Diff(nil, want))
			client := affinityElement(FamilyIP, 1, 3600e9, 3600e9)
			commitAll(t, c, Transaction{Steps: []Step{{Op: AddElements, Table: want, Set: want.Set("affinity"), Elements: []Element{client}}}})
			runNft(t, "", "add", "element", "ip", "kube-proxy", tc.set, "{", tc.element, "}")
			tx := checkRepaired(t, c, want)
			if text := "delete element ip kube-proxy " + tc.set + " {\n\t*,\n}\n"; tx.String() != text {
				t.Errorf("the repair is\n%swant\n%s", tx, text)
			}
			if got := affinityElements(t, c, want); len(got) != 1 || got[0].Key != client.Key {
				t.Errorf("packets had added one element, now there are %v", got)
			}
		})
	}
}

func testCatchAllThatIsWantedIsCommittedAndListed(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	for _, f := range Families {
		want := everything(f)
		want.Set("service-ips").Put(Element{Key: CatchAll, Verdict: Drop, Comment: "the rest"})
		want.Set("cluster-ips").Put(Element{Key: CatchAll})
		want.Set("sources").Put(Element{Key: CatchAll})
		want.Set("ports").Put(Element{Key: CatchAll, Value: PortData(3)})
		commitAll(t, c, Diff(nil, want))
		if tx := Diff(readBack(t, c, f, want.Name), want); !tx.Empty() {
			t.Errorf("%s: read back, it differs by\n%s", f, tx)
		}
		if listing := runNft(t, "", "list", "set", f.String(), want.Name, "cluster-ips"); !strings.Contains(listing, "*") {
			t.Errorf("nft lists no catch-all:\n%s", listing)
		}
		commitAll(t, c, Diff(want, everything(f)))
		if tx := Diff(readBack(t, c, f, want.Name), everything(f)); !tx.Empty() {
			t.Errorf("%s: without catch-alls it differs by\n%s", f, tx)
		}
	}
}

func TestDiff(t *testing.T) {
	t.Run("replaces elements that say more than this package can", testElementsThatSayMoreThanThisPackageCanAreReplaced)
	t.Run("of a table with itself is empty", testTheDiffOfATableWithItselfIsEmpty)
	t.Run("of two tables turns one into the other", testTheDiffOfTwoTablesTurnsOneIntoTheOther)
	t.Run("of two tables is accepted by the kernel", testTheRealKernelTakesTheDiffOfTwoTables)
	t.Run("gives another comment to a regular chain that is in use", testARegularChainThatIsInUseCanGetAnotherComment)
}

func testElementsThatSayMoreThanThisPackageCanAreReplaced(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	want := everything(FamilyIP)
	commitAll(t, c, Diff(nil, want))
	// nft has no words for an expression in an element of a set that declares none; the kernel takes it.
	set := want.Set("cluster-ips")
	element := set.Elements()[0]
	commitAll(t, c, Transaction{Steps: []Step{{Op: DeleteElements, Table: want, Set: set, Elements: []Element{element}}}})
	commitRaw(t, c, limitedElement(want, set, element))
	checkRepaired(t, c, want)
}

// limitedElement adds an element that matches a packet an hour.
func limitedElement(table *Table, set *Set, e Element) message {
	a := append(start(table.Family, table.Name, 512), elementList(set.Name)...)
	list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	elem := a.Begin(unix.NFTA_LIST_ELEM)
	encodeKey(&a, set, set.lengths(), &e)
	encodeValue(&a, set, set.lengths(), &e)
	expression := a.Begin(unix.NFTA_SET_ELEM_EXPR)
	a.Text(unix.NFTA_EXPR_NAME, "limit")
	data := a.Begin(unix.NFTA_EXPR_DATA)
	a.ByteString(unix.NFTA_LIMIT_RATE, "\x00\x00\x00\x00\x00\x00\x00\x01")
	a.ByteString(unix.NFTA_LIMIT_UNIT, "\x00\x00\x00\x00\x00\x00\x0e\x10")
	a.End(data)
	a.End(expression)
	a.End(elem)
	a.End(list)
	return rawMessage(unix.NFT_MSG_NEWSETELEM, a)
}
