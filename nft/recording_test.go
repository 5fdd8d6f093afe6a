package nft

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"
)

// recorded are the texts of a table and of the one that its recording gives.
func recorded(t *testing.T, r Recording, want *Table) {
	t.Helper()
	got, err := r.Table()
	if err != nil {
		t.Fatal(err)
	}
	text := func(t *Table) string {
		sorted := *t
		sorted.Chains = slices.Clone(t.Chains)
		SortChains(sorted.Chains)
		return sorted.String()
	}
	if diff := cmp.Diff(text(want), text(got)); diff != "" {
		t.Errorf("-table +recording:\n%s", diff)
	}
}

func TestRecording(t *testing.T) {
	for _, f := range Families {
		t.Run("of a wanted table/"+f.String(), func(t *testing.T) {
			r, err := everything(f).Record()
			if err != nil {
				t.Fatal(err)
			}
			recorded(t, r, everything(f))
		})
	}
	t.Run("has the elements of dynamic sets if wanted", testRecordingHasDynamicElementsIfWanted)
	t.Run("that is damaged is an error", func(t *testing.T) {
		r, err := everything(FamilyIP).Record()
		if err != nil {
			t.Fatal(err)
		}
		swapped := slices.Clone(r)
		for at := 0; at < len(swapped); {
			length := binary.NativeEndian.Uint32(swapped[at:])
			slices.Reverse(swapped[at : at+4])
			at += int(length)
		}
		for name, tt := range map[string]struct {
			recording Recording
			want      string
		}{
			"empty":                   {nil, "nft: the recording has no table"},
			"cut off":                 {r[:len(r)-8], "nft: the recording is cut off"},
			"without its beginning":   {r[binary.NativeEndian.Uint32(r):], "nft: a recorded message: a part comes before its table"},
			"of another byte order":   {swapped, "nft: the recording is of a machine with another byte order"},
			"shorter than its header": {r[:3], "nft: the recording is cut off"},
		} {
			if _, err := tt.recording.Table(); err == nil || err.Error() != tt.want {
				t.Errorf("%s: %v, want %s", name, err, tt.want)
			}
		}
	})
}

// checkRecorded compares a table of the kernel with its recording, in which there is no other table.
func checkRecorded(t *testing.T, c *Conn, family Family, name string) {
	t.Helper()
	want, r, err := c.Record(t.Context(), family, name, true)
	if err != nil {
		t.Fatal(err)
	}
	recorded(t, r, want)
	got, err := r.Table()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Kernel, got.Kernel, cmp.AllowUnexported(Object{})); diff != "" {
		t.Errorf("what the kernel knows, -table +recording:\n%s", diff)
	}
	for message := Recording(r); len(message) > 0; message = message[netlinkattr.Padded(int(binary.NativeEndian.Uint32(message))):] {
		if !isAbout(message[unix.NLMSG_HDRLEN:binary.NativeEndian.Uint32(message)], name) {
			t.Error("there is a message about another table")
		}
	}
}

func testRecordingHasDynamicElementsIfWanted(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	runNft(t, `table ip kube-proxy { map clients { typeof ip saddr : ip daddr . tcp dport; flags dynamic,timeout; size 100; elements = { 10.0.0.1 timeout 1h : 10.0.0.2 . 80 }; }; }
table ip other { chain secret { }; }`, "-f", "-")
	checkRecorded(t, c, FamilyIP, "kube-proxy")
	for dynamic, want := range map[bool]int{false: 0, true: 1} {
		_, r, err := c.Record(t.Context(), FamilyIP, "kube-proxy", dynamic)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.Table()
		if err != nil {
			t.Fatal(err)
		}
		if n := got.Set("clients").Len(); n != want {
			t.Errorf("dynamic %v: %d elements", dynamic, n)
		}
	}
}

// FuzzRecording shows that any bytes are read or refused, and that what is read prints.
func FuzzRecording(f *testing.F) {
	counted := &Set{Name: "s", Key: Concat{IPDaddr, ThDport}, Counter: true}
	counted.Put(Element{Key: "\x0a\x00\x00\x01" + PortData(80), Comment: "web"})
	for _, table := range []*Table{
		{Family: FamilyIP, Name: "t", Sets: []*Set{counted}},
		{Family: FamilyIP6, Name: "t", Chains: []*Chain{{Name: "c", Rules: []Rule{NewRule(Match{Field: ThDport, Value: PortData(80)}, Drop)}}}},
	} {
		r, err := table.Record()
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Recording(data).Table()
		if err != nil {
			return
		}
		if err := Recording(data).Counts(func(string, Data, Count) {}); err != nil {
			t.Errorf("has a table and no counts: %v", err)
		}
		if text := table.String(); !strings.HasPrefix(text, "table ") {
			t.Errorf("prints as\n%s", text)
		}
	})
}
