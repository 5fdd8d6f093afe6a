package nft

import (
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// dynamicTable has a map that packets add to, a rule that does it, and one that looks it up.
func dynamicTable(f Family) *Table {
	key := append(Concat{f.Saddr()}, frontendKey(f)...)
	return &Table{Family: f, Name: "kube-proxy",
		Sets: []*Set{{Name: "affinity", Key: key, Data: Concat{f.Daddr(), ThDport}, Dynamic: true, Size: 1000}},
		Chains: []*Chain{
			{Name: "affinity-update", Rules: []Rule{affinityUpdate(f)}},
			{Name: "use", Rules: []Rule{NewRule(DNAT{f, key, "affinity"})}},
		}}
}

func affinityElement(f Family, seed byte, timeout, expires time.Duration) Element {
	addr := strings.Repeat("\x0a", f.Daddr().dataType().length-1) + string([]byte{seed})
	return Element{
		Key:     Data(addr+addr) + ProtoData(unix.IPPROTO_TCP) + PortData(80),
		Value:   Data(addr) + PortData(8080),
		Timeout: timeout, Expires: expires,
	}
}

func TestDynamicSet(t *testing.T) {
	t.Run("with the rules that fill it is listed by the nft program", testTheNftProgramListsRulesThatFillAMap)
	t.Run("keeps what packets added through diffs", testWhatPacketsAddedStaysThroughDiffsAndIsReadOnRequest)
}

func testTheNftProgramListsRulesThatFillAMap(t *testing.T) {
	netns.EnterForTest(t)
	conn := dial(t)
	for _, f := range Families {
		if _, err := conn.Commit(t.Context(), Diff(nil, dynamicTable(f))); err != nil {
			t.Fatal(err)
		}
		listing := runNft(t, "", "list", "table", f.String(), "kube-proxy")
		for _, want := range []string{affinityUpdate(f).String(), "flags dynamic,timeout", "size 1000"} {
			if !strings.Contains(listing, want) {
				t.Errorf("%s: nft lists no %q:\n%s", f, want, listing)
			}
		}
	}
}

func testWhatPacketsAddedStaysThroughDiffsAndIsReadOnRequest(t *testing.T) {
	netns.EnterForTest(t)
	conn := dial(t)
	for _, f := range Families {
		want := dynamicTable(f)
		tx := Diff(nil, want)
		long, short := affinityElement(f, 1, time.Hour, 30*time.Minute), affinityElement(f, 2, time.Minute, time.Minute)
		tx.Steps = append(tx.Steps, Step{Op: AddElements, Table: want, Set: want.Sets[0], Elements: []Element{long, short}})
		if _, err := conn.Commit(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		have, err := conn.ReadTable(t.Context(), f, "kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if diff := Diff(have, want); !diff.Empty() {
			t.Errorf("%s: the difference is not empty:\n%s", f, diff)
		}
		elements, err := conn.ReadElements(t.Context(), f, "kube-proxy", want.Sets[0])
		if err != nil {
			t.Fatal(err)
		}
		if len(elements) != 2 {
			t.Fatalf("%s: %d elements, want 2", f, len(elements))
		}
		for _, e := range elements {
			given := long
			if e.Key == short.Key {
				given = short
			}
			if left := given.Expires - e.Expires; left < 0 || left > 20*time.Second {
				t.Errorf("%s: an element that was to expire in %v expires in %v", f, given.Expires, e.Expires)
			}
			e.Expires = given.Expires
			if e != given {
				t.Errorf("%s: read %+v, want %+v", f, e, given)
			}
		}
	}
}
