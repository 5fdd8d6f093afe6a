package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

func TestCommitError(t *testing.T) {
	t.Run("names the step and the errno", testARefusalNamesTheStepAndTheErrno)
	t.Run("says which privilege is missing", testWithoutPrivilegesTheErrorSaysWhichOneIsMissing)
	t.Run("has all refusals", testAnErrorHasAllRefusals)
}

func testARefusalNamesTheStepAndTheErrno(t *testing.T) {
	table := &Table{Family: FamilyIP, Name: "t"}
	inUse := &Chain{Name: "in-use"}
	ips := &Set{Name: "ips", Key: Concat{IPDaddr}}
	one := Element{Key: AddrData(netip.MustParseAddr("10.0.0.1"))}
	ips.Put(one)
	there := &Table{Family: FamilyIP, Name: "t", Sets: []*Set{ips}, Chains: []*Chain{
		inUse, {Name: "user", Rules: []Rule{NewRule(Jump("in-use")), NewRule(InSet{ips.Key, Equal, "ips"}, Drop)}},
	}}
	otherwise := &Set{Name: "ips", Key: Concat{IPDaddr, ThDport}}
	for _, tc := range []struct {
		name  string
		steps []Step
		errno error
		want  string
	}{
		{
			name: "a rule that is right at its place in a chain, but leads nowhere",
			steps: []Step{{Op: AddRules, Table: table, Chain: &Chain{Name: "user", Rules: []Rule{
				NewRule(Counter{}), NewRule(Match{Field: IPSaddr, Op: Equal, Value: netip.MustParsePrefix("10.0.0.0/8")}, Jump("nowhere")),
			}}}},
			errno: unix.ENOENT,
			want:  "add rule ip t user ip saddr 10.0.0.0/8 jump nowhere",
		},
		{
			name: "a rule that its chain's hook does not allow",
			steps: []Step{
				{Op: AddChain, Table: table, Chain: &Chain{Name: "in", Type: TypeFilter, Hook: HookInput}},
				{Op: AddRules, Table: table, Chain: &Chain{Name: "in", Rules: []Rule{NewRule(Masquerade)}}},
			},
			errno: unix.EOPNOTSUPP,
			want:  "add rule ip t in masquerade fully-random",
		},
		{"deleting a chain in use", []Step{{Op: DeleteChain, Table: table, Chain: inUse}}, unix.EBUSY, "delete chain ip t in-use"},
		{"deleting a chain that is not there", []Step{{Op: DeleteChain, Table: table, Chain: &Chain{Name: "gone"}}}, unix.ENOENT, "delete chain ip t gone"},
		{"deleting a set in use", []Step{{Op: DeleteSet, Table: table, Set: ips}}, unix.EBUSY, "delete set ip t ips"},
		{"a set that is there with another type", []Step{{Op: AddSet, Table: table, Set: otherwise}}, unix.EEXIST, "add set ip t ips { typeof ip daddr . th dport; }"},
		{
			name:  "deleting an element that is not there",
			steps: []Step{{Op: DeleteElements, Table: table, Set: ips, Elements: []Element{one, {Key: AddrData(netip.MustParseAddr("10.0.0.2"))}}}},
			errno: unix.ENOENT,
			want:  "delete element ip t ips { 10.0.0.2 }",
		},
		{"a table that is not there", []Step{{Op: DeleteTable, Table: &Table{Family: FamilyIP6, Name: "gone"}}}, unix.ENOENT, "delete table ip6 gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			if _, err := c.Commit(t.Context(), Diff(nil, there)); err != nil {
				t.Fatal(err)
			}
			_, err := c.Commit(t.Context(), Transaction{Steps: tc.steps})
			var refused *CommitError
			if !errors.As(err, &refused) {
				t.Fatalf("Commit = %v, want a CommitError", err)
			}
			if !errors.Is(err, tc.errno) {
				t.Errorf("the error is %v, want %v", refused.Err, tc.errno)
			}
			if diff := cmp.Diff(tc.want, refused.Step); diff != "" {
				t.Errorf("refused step (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the message does not name the step: %v", err)
			}
			got, err := c.ReadTable(t.Context(), FamilyIP, "t")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(inOrder(there), inOrder(got)); diff != "" {
				t.Errorf("the kernel holds (-before +after):\n%s", diff)
			}
		})
	}
}

// withoutCapability takes a capability from the test's thread for as long as it runs.
func withoutCapability(t *testing.T, capability int) {
	t.Helper()
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		t.Fatal(err)
	}
	less := have
	less[0].Effective &^= 1 << capability
	if err := unix.Capset(&header, &less[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Capset(&header, &have[0]); err != nil {
			return // the thread stays locked and ends with the goroutine
		}
		runtime.UnlockOSThread()
	})
}

func testWithoutPrivilegesTheErrorSaysWhichOneIsMissing(t *testing.T) {
	netns.EnterForTest(t)
	withoutCapability(t, unix.CAP_NET_ADMIN)
	c := dial(t)
	_, err := c.Commit(t.Context(), Diff(nil, &Table{Family: FamilyIP, Name: "t"}))
	var refused *CommitError
	if !errors.As(err, &refused) || !errors.Is(err, unix.EPERM) {
		t.Fatalf("Commit = %v, want a CommitError with EPERM", err)
	}
	const want = "nft: kernel refused the transaction as a whole: operation not permitted; " +
		"nftables needs CAP_NET_ADMIN in the user namespace that owns the network namespace"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if _, err := c.ReadTable(t.Context(), FamilyIP, "t"); !errors.Is(err, unix.EPERM) {
		t.Errorf("ReadTable = %v, want EPERM", err)
	}
}

func testAnErrorHasAllRefusals(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	gone := &Table{Family: FamilyIP, Name: "gone"}
	there := &Table{Family: FamilyIP, Name: "there"}
	chain := Step{Op: DeleteChain, Table: there, Chain: &Chain{Name: "busy"}}
	commitAll(t, c, Diff(nil, &Table{Family: FamilyIP, Name: "there", Chains: []*Chain{{Name: "busy"}, {Name: "user", Rules: []Rule{NewRule(Jump("busy"))}}}}))
	_, err := c.Commit(t.Context(), Transaction{Steps: []Step{{Op: AddTable, Table: there}, {Op: DeleteTable, Table: gone}, chain, {Op: DeleteTable, Table: gone}}})
	var refused *CommitError
	if !errors.As(err, &refused) || len(refused.Refused) != 3 {
		t.Fatalf("Commit = %v, want 2 more steps refused", err)
	}
	for i, want := range []Refusal{{Step{Op: DeleteTable, Table: gone}, unix.ENOENT}, {chain, unix.EBUSY}, {Step{Op: DeleteTable, Table: gone}, unix.ENOENT}} {
		if got := refused.Refused[i]; got.Step.String() != want.Step.String() || got.Err != want.Err {
			t.Errorf("refusal %d is %v, want %v", i, got, want)
		}
	}
	if want := "2 more steps refused"; !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
}

func TestReadTable(t *testing.T) {
	t.Run("does not misread what this package does not write", testWhatThisPackageDoesNotWriteIsNotMisread)
	t.Run("takes an expression that cannot be decoded for unknown", testForeignExpressionThatCannotBeDecodedIsUnknown)
}

// A rule of somebody else's is read as what it is or as unknown, never as something else.
func testWhatThisPackageDoesNotWriteIsNotMisread(t *testing.T) {
	for _, tc := range []struct{ name, load, never, is string }{
		{"an address to translate to is no verdict", "chain c {\nip daddr 10.0.0.1 dnat to 10.0.0.2\n}", "drop", "dnat to 10.0.0.2"},
		{"a limit", "chain c {\nlimit rate 1/second accept\n}", "c {\n\t\taccept", "limit rate 1/second burst 5 packets accept"},
		{"a set of ranges has no plain elements", "set s { typeof ip daddr; flags interval; elements = { 10.0.0.0/8 }; }", "\t10.0.0.0,", "opaque-"},
		{"a numgen that counts is not one that draws", "map m { typeof numgen inc mod 2 : ip daddr; elements = { 0 : 10.0.0.1 }; }", "random", "opaque-"},
		{"a set with timeouts", "set s { typeof ip daddr; flags timeout; }", "typeof ip daddr", "opaque-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			runNft(t, "table ip t {\n"+tc.load+"\n}\n", "-f", "-")
			got, err := c.ReadTable(t.Context(), FamilyIP, "t")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got.String(), tc.never) {
				t.Errorf("read as:\n%s", got)
			}
			if !strings.Contains(got.String(), tc.is) {
				t.Errorf("no %q in:\n%s", tc.is, got)
			}
		})
	}
}

// inUserNamespace runs the test once more, as a process in user and network namespaces of its own: it has all
// capabilities there, and none in the initial ones. It reports whether that process is this one.
func inUserNamespace(t *testing.T) bool {
	t.Helper()
	netns.Need(t)
	const mark = "NFT_TEST_IN_USER_NAMESPACE"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1", wmemMaxIs+"="+strconv.Itoa(wmemMax(t)))
	ids := []syscall.SysProcIDMap{{HostID: 0, ContainerID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, UidMappings: ids, GidMappings: ids}
	out, err := cmd.CombinedOutput()
	t.Logf("in user and network namespaces of its own:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Error("the test did not run there")
	}
	return false
}

func testBatchTooLargeForTheSocketSaysWhatItNeeds(t *testing.T) {
	if !inUserNamespace(t) {
		return
	}
	limit, err := strconv.Atoi(os.Getenv(wmemMaxIs))
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t)
	// The largest batch that fits passes, one twice as large does not, and is as large as the error says.
	small, large := manyAddresses(limit/32), manyAddresses(limit/8)
	commitAll(t, c, Replace(small))
	stats, err := c.Commit(t.Context(), Replace(large))
	var refused *CommitError
	if !errors.Is(err, ErrTooLarge) || !errors.Is(err, unix.EMSGSIZE) || errors.As(err, &refused) {
		t.Fatalf("Commit of %d bytes with wmem_max %d = %v, want ErrTooLarge", stats.Bytes, limit, err)
	}
	needed := regexp.MustCompile(`net\.core\.wmem_max to at least (\d+)`).FindStringSubmatch(err.Error())
	if needed == nil {
		t.Fatalf("no hint in %q", err)
	}
	if n, _ := strconv.Atoi(needed[1]); n < stats.Bytes/2 || n > stats.Bytes {
		t.Errorf("for %d bytes the error asks for %d", stats.Bytes, n)
	}
	got, err := c.ReadTable(t.Context(), FamilyIP, small.Name)
	if err != nil {
		t.Fatal(err)
	}
	if tx := Diff(got, small); !tx.Empty() {
		t.Error("the batch that was too large changed something")
	}
}

// wmemMaxIs is the environment variable with net.core.wmem_max, which older kernels show in the initial network
// namespace only.
const wmemMaxIs = "NFT_TEST_WMEM_MAX"

func wmemMax(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/core/wmem_max")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTransactionSize(t *testing.T) {
	elements := make([]Element, 3)
	tx := Transaction{Steps: []Step{
		{Op: AddTable}, {Op: AddSet}, {Op: AddChain}, {Op: AddRules},
		{Op: AddElements, Elements: elements}, {Op: DeleteElements, Elements: elements[:2]},
		{Op: FlushChain}, {Op: DeleteChain},
	}}
	if elements, chains := tx.size(); elements != 5 || chains != 3 {
		t.Errorf("size() = %d elements, %d chains; want 5, 3", elements, chains)
	}
}

// Steps with many elements are encoded by goroutines.
func TestTransactionEncode(t *testing.T) {
	table := manyServices(2 * besideFrom)
	tx := Replace(table)
	t.Run("messages are in the order of the steps and have all elements", func(t *testing.T) {
		messages, err := tx.encode()
		if err != nil {
			t.Fatal(err)
		}
		want, got := map[string]int{}, map[string]int{}
		for _, s := range table.Sets {
			want[s.Name] = s.Len()
		}
		at := 0
		for _, m := range messages {
			for at < len(tx.Steps) && (tx.Steps[at].Op != m.step.Op || tx.Steps[at].Set != m.step.Set) {
				at++
			}
			if m.step.Op != AddElements {
				continue
			}
			if err := eachElement(m.Data, func(*rawElement) error { got[m.step.Set.Name]++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if at == len(tx.Steps) {
			t.Error("the messages are in another order than the steps")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("elements in the messages (-want +got):\n%s", diff)
		}
	})
	t.Run("an element that its set cannot hold is refused, and nothing reads the sets afterwards", func(t *testing.T) {
		table.Sets[1].Put(Element{Key: "short"})
		_, err := tx.encode()
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v, want %v", err, ErrInvalid)
		}
		for i := range besideFrom {
			table.Sets[0].Put(Element{Key: Data(fmt.Sprintf("%012d", i)), Verdict: Drop}) // the race detector looks
		}
	})
}
