package nft

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// ours is a table with all there is that belongs to whoever commits it.
func ours(f Family) *Table {
	t := everything(f)
	t.Owner, t.Persist = true, true
	return t
}

// header reads the table's flags and owner, or ends the test.
func header(t *testing.T, c *Conn, table *Table) *Table {
	t.Helper()
	h, err := c.ReadHeader(t.Context(), table.Family, table.Name)
	if err != nil {
		t.Fatal(err)
	}
	if h == nil {
		t.Fatalf("there is no table %s %s", table.Family, table.Name)
	}
	return h
}

// failsAsOwned checks that the error is the one for a table of somebody else's.
func failsAsOwned(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrTableOwned) || !strings.Contains(err.Error(), "the table belongs to another process (flag owner)") {
		t.Errorf("error %v, want ErrTableOwned", err)
	}
}

func testOwnedTableStaysWhenSomebodyFlushesTheRuleset(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	netns.EnterForTest(t)
	owner, other := dial(t), dial(t)
	want := ours(FamilyIP)
	commitAll(t, owner, Replace(want))
	commitAll(t, other, Diff(nil, &Table{Family: FamilyIP, Name: "other"}))
	runNft(t, "", "flush", "ruleset")
	if there, err := other.HasTable(t.Context(), FamilyIP, "other"); there || err != nil {
		t.Fatalf("the flush left other tables (%v)", err)
	}
	if tx := Diff(readBack(t, other, FamilyIP, want.Name), want); !tx.Empty() {
		t.Errorf("the flush changed the table:\n%s", tx)
	}
	// The listing of nft 1.0.6 has no word for persist.
	listing := runNft(t, "", "list", "table", "ip", want.Name)
	if !strings.Contains(listing, "flags owner") {
		t.Errorf("nft lists:\n%s", listing)
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if listing := runNft(t, "", "list", "table", "ip", want.Name); strings.Contains(listing, "owner") || !strings.Contains(listing, "cluster-ips") {
		t.Errorf("when the owner has gone, nft lists:\n%s", listing)
	}
}

// owns reports whether a table that was read from the kernel belongs to the connection's socket.
func owns(c *Conn, t *Table) bool {
	c.turn <- struct{}{}
	defer c.endTurn()
	return c.socket != nil && c.socket.port == t.kernel().OwnerPort
}

func TestOwnedTable(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	netns.EnterForTest(t)
	owner, other := dial(t), dial(t)
	want := ours(FamilyIP)
	commitAll(t, owner, Replace(want))
	h := header(t, other, want)
	if !h.Owner || !h.Persist || !owns(owner, h) || owns(other, h) {
		t.Fatalf("it has %q, owner is port %d", h.flagsText(), h.Kernel.OwnerPort)
	}
	if tx := Diff(readBack(t, other, FamilyIP, want.Name), want); !tx.Empty() {
		t.Errorf("read back, it differs by\n%s", tx)
	}
	t.Run("refuses what others commit", func(t *testing.T) {
		set := want.Set("cluster-ips")
		for _, tx := range []Transaction{
			Replace(want), Remove(FamilyIP, want.Name), Diff(nil, everything(FamilyIP)),
			{Steps: []Step{{Op: DeleteElements, Table: want, Set: set, Elements: set.Elements()}}},
			{Steps: []Step{{Op: FlushChain, Table: want, Chain: want.Chains[0]}}},
		} {
			_, err := other.Commit(t.Context(), tx)
			failsAsOwned(t, err)
		}
	})
	t.Run("takes what the owner commits", func(t *testing.T) {
		want.Set("cluster-ips").Put(Element{Key: "\x0a\x09\x09\x09"})
		commitAll(t, owner, Diff(readBack(t, owner, FamilyIP, want.Name), want))
		commitAll(t, owner, Replace(want))
		if tx := Diff(readBack(t, other, FamilyIP, want.Name), want); !tx.Empty() {
			t.Errorf("it differs by\n%s", tx)
		}
	})
	t.Run("is taken over by the owner's next socket", func(t *testing.T) {
		owner.socket.conn.Close()
		if _, err := owner.Generation(t.Context()); err == nil {
			t.Fatal("a closed socket answered")
		}
		if h := header(t, other, want); !owns(owner, h) {
			t.Errorf("it has %q, owner is port %d", h.flagsText(), h.Kernel.OwnerPort)
		}
		commitAll(t, owner, Replace(want))
	})
	t.Run("is not made anew by the owner's next socket when it is gone", func(t *testing.T) {
		commitAll(t, owner, Remove(FamilyIP, want.Name))
		owner.socket.conn.Close()
		_, _ = owner.Generation(t.Context())
		if there, err := owner.HasTable(t.Context(), FamilyIP, want.Name); there || err != nil {
			t.Errorf("HasTable = %v, %v", there, err)
		}
	})
	t.Run("stays when somebody flushes the ruleset", testOwnedTableStaysWhenSomebodyFlushesTheRuleset)
	t.Run("is left to who took it meanwhile", testOwnedTableIsLeftToWhoTookItMeanwhile)
}

func testOwnedTableIsLeftToWhoTookItMeanwhile(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	netns.EnterForTest(t)
	owner, other := dial(t), dial(t)
	want := ours(FamilyIP)
	commitAll(t, owner, Replace(want))
	// As in a call that fails, but somebody else is faster.
	owner.drop()
	commitAll(t, other, Diff(readBack(t, other, FamilyIP, want.Name), want))
	if _, err := owner.Generation(t.Context()); err != nil {
		t.Fatalf("the connection does not work without its table: %v", err)
	}
	_, err := owner.Commit(t.Context(), Replace(want))
	failsAsOwned(t, err)
}

func TestOrphanedTable(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	for _, tc := range []struct {
		name  string
		after func(t *testing.T, c *Conn, want *Table)
	}{
		{"is taken over, and nothing else changes", func(t *testing.T, c *Conn, want *Table) {
			client := affinityElement(FamilyIP, 1, 3600e9, 3600e9)
			commitAll(t, c, Transaction{Steps: []Step{{Op: AddElements, Table: want, Set: want.Set("affinity"), Elements: []Element{client}}}})
			tx := checkRepaired(t, c, want)
			if got := tx.String(); got != "add table ip kube-proxy { flags owner, persist; }\n" {
				t.Errorf("the transaction is\n%s", got)
			}
			if h := header(t, c, want); !owns(c, h) || !h.Persist {
				t.Errorf("it has %q, owner is port %d", h.flagsText(), h.Kernel.OwnerPort)
			}
			if got := affinityElements(t, c, want); len(got) != 1 {
				t.Errorf("of what packets added there is %v", got)
			}
		}},
		{"is taken over together with a change", func(t *testing.T, c *Conn, want *Table) {
			want.Set("cluster-ips").Put(Element{Key: "\x0a\x09\x09\x09"})
			checkRepaired(t, c, want)
			if h := header(t, c, want); !owns(c, h) {
				t.Errorf("it has %q, owner is port %d", h.flagsText(), h.Kernel.OwnerPort)
			}
		}},
		{"is replaced whole", func(t *testing.T, c *Conn, want *Table) {
			commitAll(t, c, Replace(want))
			if h := header(t, c, want); !owns(c, h) {
				t.Errorf("it has %q, owner is port %d", h.flagsText(), h.Kernel.OwnerPort)
			}
		}},
		{"becomes a table without an owner", func(t *testing.T, c *Conn, _ *Table) {
			want := everything(FamilyIP)
			commitAll(t, c, Diff(readBack(t, c, FamilyIP, want.Name), want))
			if h := header(t, c, want); h.flags() != 0 || h.Kernel.OwnerPort != 0 {
				t.Errorf("it has %q", h.flagsText())
			}
		}},
		{"is replaced by a table without an owner, unread", func(t *testing.T, c *Conn, _ *Table) {
			want := everything(FamilyIP)
			commitAll(t, c, Replace(want))
			if h := header(t, c, want); h.flags() != 0 {
				t.Errorf("it has %q", h.flagsText())
			}
		}},
		{"is removed", func(t *testing.T, c *Conn, want *Table) {
			commitAll(t, c, Remove(FamilyIP, want.Name))
			if there, err := c.HasTable(t.Context(), FamilyIP, want.Name); there || err != nil {
				t.Errorf("HasTable = %v, %v", there, err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if isOwner() {
				ownUntilKilled(t)
			}
			netns.EnterForTest(t)
			want := ours(FamilyIP)
			killOwner(t, want)
			c := dial(t)
			if h := header(t, c, want); !h.Persist || h.Owner || h.Kernel.OwnerPort != 0 {
				t.Fatalf("when its owner was killed, the table had %q, its owner port %d", h.flagsText(), h.Kernel.OwnerPort)
			}
			tc.after(t, c, want)
		})
	}
	t.Run("of an ordinary one becomes owned by being replaced", func(t *testing.T) {
		netns.EnterForTest(t)
		c := dial(t)
		commitAll(t, c, Replace(everything(FamilyIP)))
		want := ours(FamilyIP)
		tx := Diff(readBack(t, c, FamilyIP, want.Name), want)
		if !tx.AddsTable() {
			t.Errorf("the transaction is\n%s", tx)
		}
		commitAll(t, c, tx)
		if h := header(t, c, want); !owns(c, h) {
			t.Errorf("it has %q", h.flagsText())
		}
	})
}

const ownerMark = "NFT_TEST_OWNER"

func isOwner() bool { return os.Getenv(ownerMark) != "" }

// ownUntilKilled owns a table until the process is killed. It runs in the process that killOwner starts.
func ownUntilKilled(t *testing.T) {
	c := dial(t)
	commitAll(t, c, Replace(ours(FamilyIP)))
	os.Stdout.WriteString("\ncommitted\n")
	select {}
}

// killOwner has another process own the table, and kills it.
func killOwner(t *testing.T, want *Table) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), ownerMark+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tooLong := time.AfterFunc(await.Patience, func() { _ = cmd.Process.Kill() })
	defer tooLong.Stop()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "committed" {
	}
	c := dial(t)
	if h := header(t, c, want); !h.Owner || h.Kernel.OwnerPort != uint32(cmd.Process.Pid) {
		t.Errorf("it has %q, owner is port %d; want the process %d", h.flagsText(), h.Kernel.OwnerPort, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// The name of the probe's table is another one each time, and nobody's table is in its way.
func testProbeWithALeftoverTable(t *testing.T) {
	netns.NeedLinux(t, 6, 9) // table flag persist
	netns.EnterForTest(t)
	owner, c := dial(t), dial(t)
	for _, f := range Families {
		commitAll(t, owner, Diff(nil, &Table{Family: f, Name: "nftproxy-probe", Owner: true, Persist: true,
			Sets: []*Set{{Name: "verdicts", Key: Concat{MetaMark}}}, Chains: []*Chain{{Name: "probe", Type: TypeFilter, Hook: HookInput}}}))
	}
	if err := c.Probe(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if a, b := probeTable(), probeTable(); a == b {
		t.Errorf("two names of a probe's table are both %s", a)
	}
}

func TestDestroyTable(t *testing.T) {
	t.Run("on older kernels", testDestroyTableOnOlderKernels)
	t.Run("is probed without a commit", testDestroyTableIsProbedWithoutACommit)
}

// A kernel before 6.3 cannot destroy a table; what it is sent has the same effect.
func testDestroyTableOnOlderKernels(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	old := false
	c.canDestroy.Store(&old)
	for range 2 {
		commitAll(t, c, Replace(everything(FamilyIP)))
	}
	for range 2 {
		commitAll(t, c, Remove(FamilyIP, "kube-proxy"))
	}
	if left := runNft(t, "", "list", "ruleset"); left != "" {
		t.Errorf("Remove left:\n%s", left)
	}
}

func testDestroyTableIsProbedWithoutACommit(t *testing.T) {
	netns.NeedLinux(t, 6, 3)
	netns.EnterForTest(t)
	c := dial(t)
	before, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if can, err := c.knowsDestroy(t.Context(), Remove(FamilyIP, "t")); !can || err != nil {
		t.Fatalf("knowsDestroy = %v, %v", can, err)
	}
	after, err := c.Generation(t.Context())
	if err != nil || after != before {
		t.Errorf("the generation went from %d to %d (%v)", before, after, err)
	}
}
