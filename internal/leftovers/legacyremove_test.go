package leftovers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
	"golang.org/x/sys/unix"
)

// savedCounters returns what iptables-legacy-save -c prints of a family, without comments.
func savedCounters(t *testing.T, name string) string {
	t.Helper()
	var lines []string
	for _, line := range strings.Split(run(t, "", name+"-legacy-save", "-c"), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// counted has matches and targets of many kinds, with counters. Those with a state in the kernel are among them.
const counted = `*filter
:INPUT ACCEPT [11:1111]
:FORWARD DROP [12:1212]
:OUTPUT ACCEPT [0:0]
:LONG - [0:0]
:EMPTY - [0:0]
[1:100] -A INPUT -p tcp -m multiport --dports 1,2:3,4 -m comment --comment several -j ACCEPT
[2:200] -A INPUT -m recent --rcheck --seconds 5 --name mine --mask 255.255.255.255 --rsource
[3:300] -A INPUT -m limit --limit 5/min -j LONG
[4:400] -A FORWARD -m statistic --mode nth --every 3 --packet 1 -g EMPTY
[5:500] -A LONG -m mark --mark 0x4/0x4 -j RETURN
[6:600] -A LONG -j EMPTY
[7:700] -A LONG
COMMIT
*nat
:PREROUTING ACCEPT [21:2121]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
[8:800] -A PREROUTING -p udp -m udp --dport 99 -j DNAT --to-destination 10.0.0.1:98
[9:900] -A POSTROUTING -o eth9 -j MASQUERADE
COMMIT
`

func TestReplaceLegacyTable(t *testing.T) {
	t.Run("the same entries are the same table, with their counters", func(t *testing.T) {
		netns.EnterForTest(t)
		run(t, counted, "iptables-legacy-restore", "-c")
		before := savedCounters(t, "iptables")
		for _, name := range []string{"filter", "nat"} {
			table, err := legacyFamilies[0].read(name)
			if err != nil {
				t.Fatal(err)
			}
			kept, err := table.remove(nothing)
			if err != nil {
				t.Fatal(err)
			}
			if err := table.family.socket(func(socket int) error { return table.replace(socket, kept) }); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, savedCounters(t, "iptables")); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
	t.Run("rules that stay keep their counters", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxy(t, "legacy")
		run(t, counted, "iptables-legacy-restore", "-c", "--noflush")
		if _, err := new(Remover).Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := strings.ReplaceAll(savedCounters(t, "iptables"), ":KUBE-FIREWALL - [0:0]\n", "")
		for _, line := range strings.Split(counted, "\n") {
			if !strings.Contains(got, line+"\n") {
				t.Errorf("%q is not in\n%s", line, got)
			}
		}
	})
	t.Run("a table that changed since is read again", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxy(t, "legacy")
		before := setsockopt
		t.Cleanup(func() { setsockopt = before })
		calls := 0
		setsockopt = func(socket, level, option int, value []byte) error {
			if calls++; calls == 1 { // without regard for the lock
				run(t, "*nat\n-A PREROUTING -p udp --dport 99 -j REDIRECT --to-ports 98\nCOMMIT\n", "iptables-legacy-restore", "--noflush")
			}
			return before(socket, level, option, value)
		}
		useLock(t, true)
		if _, err := new(Remover).Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rules := saved(t, "legacy"); !strings.Contains(rules, "--dport 99") || strings.Contains(rules, "KUBE-SVC") {
			t.Errorf("the rules are\n%s", rules)
		}
	})
	t.Run("waits for the lock", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxy(t, "legacy")
		useLock(t, true)
		lock, err := lockTables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		free := time.AfterFunc(300*time.Millisecond, func() { lock.Close() })
		defer free.Stop()
		start := time.Now()
		if _, err := new(Remover).Remove(t.Context()); err != nil || time.Since(start) < 200*time.Millisecond {
			t.Errorf("removed after %s, error %v", time.Since(start), err)
		}
	})
	t.Run("without the lock nothing is removed", func(t *testing.T) {
		netns.EnterForTest(t)
		leaveKubeProxy(t, "legacy")
		before := saved(t, "legacy")
		file := useLock(t, false)
		if removal, err := new(Remover).Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "mount the host's file there") {
			t.Errorf("removed %+v, error %v", removal, err)
		}
		if diff := cmp.Diff(before, saved(t, "legacy")); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the lock, of which no iptables program would know, was made: %v", err)
		}
	})
}

// useLock has another file in the place of the machine's lock.
func useLock(t *testing.T, exists bool) (file string) {
	t.Helper()
	t.Cleanup(func() { lockFile = LockFile })
	lockFile = filepath.Join(t.TempDir(), "lock")
	if exists {
		if err := os.WriteFile(lockFile, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return lockFile
}

func TestFindWhereNamesCannotBeRead(t *testing.T) {
	netns.EnterForTest(t)
	leaveKubeProxy(t, "nft")
	before := legacyFamilies[0].names
	t.Cleanup(func() { legacyFamilies[0].names = before })
	legacyFamilies[0].names = t.TempDir() // a directory cannot be read
	found, err := Find(t.Context())
	if err == nil || len(found) != 1 || found[0].Kind != NFT {
		t.Errorf("found %+v, error %v", found, err)
	}
	removal, err := new(Remover).Remove(t.Context())
	if err == nil || removal.Removed.Count < 50 {
		t.Errorf("removed %d chains, error %v", removal.Removed.Count, err)
	}
	legacyFamilies[0].names = filepath.Join(t.TempDir(), "missing")
	if found, err := Find(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("found %+v, error %v", found, err)
	}
}

// dieAt is the environment variable with the number of the call of setsockopt at which the process is killed.
const dieAt = "LEFTOVERS_TEST_DIE_AT"

// TestRemovalThatIsInterrupted kills a process before and after each step of a removal.
func TestRemovalThatIsInterrupted(t *testing.T) {
	if at := os.Getenv(dieAt); at != "" {
		dieInRemoval(t, at)
		return
	}
	if testing.Short() {
		t.Skip("it starts a process for each step")
	}
	netns.EnterForTest(t)
	for _, variant := range []string{"nft", "legacy"} {
		leaveOthers(t, variant)
	}
	before := saved(t, "nft") + saved(t, "legacy")
	for call := 0; ; call++ {
		for _, variant := range []string{"nft", "legacy"} {
			leaveKubeProxyAlone(t, variant)
		}
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", dieAt, call))
		out, err := child.CombinedOutput()
		killed := child.ProcessState.ExitCode() == -1
		if err != nil && !killed {
			t.Fatalf("step %d: %v\n%s", call, err, out)
		}
		// Each table has all of kube-proxy's rules, or none, and all of the others'.
		for _, rules := range []string{saved(t, "nft"), saved(t, "legacy")} {
			for _, table := range strings.Split(rules, "COMMIT") {
				if strings.Contains(table, "*nat") && strings.Contains(table, "KUBE-SEP-") != strings.Contains(table, "-j KUBE-SERVICES") {
					t.Errorf("step %d left a part of a table:\n%s", call, table)
				}
			}
		}
		if _, err := new(Remover).Remove(t.Context()); err != nil {
			t.Fatalf("after step %d: %v", call, err)
		}
		if diff := cmp.Diff(before, saved(t, "nft")+saved(t, "legacy")); diff != "" {
			t.Errorf("after step %d (-before +after):\n%s", call, diff)
		}
		if !killed {
			if call < 12 {
				t.Errorf("the removal has %d calls, want two for each of six tables", call)
			}
			return
		}
	}
}

// dieInRemoval removes the leftovers of the namespace, and ends before the given call.
func dieInRemoval(t *testing.T, at string) {
	before, calls := setsockopt, 0
	setsockopt = func(socket, level, option int, value []byte) error {
		if fmt.Sprint(calls) == at {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		calls++
		return before(socket, level, option, value)
	}
	if _, err := new(Remover).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The kernel calls the last entry of a table ERROR, and the user of iptables-legacy may call a chain so too.
func TestChainCalledERROR(t *testing.T) {
	for name, after := range map[string]string{"the last chain": "", "chains follow": ":LAST - [0:0]\n-A LAST -j ACCEPT\n-A ERROR -j LAST\n"} {
		t.Run(name, func(t *testing.T) {
			netns.EnterForTest(t)
			leaveOthers(t, "legacy")
			run(t, "*filter\n:ERROR - [0:0]\n"+after+"-A INPUT -j ERROR\n-A ERROR -s 192.0.2.1/32 -j DROP\nCOMMIT\n", "iptables-legacy-restore", "--noflush")
			before := saved(t, "legacy")
			tables, err := LegacyTables(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			rules := ""
			for _, legacy := range tables {
				if legacy.Err != nil {
					t.Error(legacy.Err)
				} else if legacy.Family == nft.FamilyIP && legacy.Name == "filter (iptables-legacy)" {
					rules = legacy.Table().String()
				}
			}
			if !strings.Contains(rules, "jump ERROR\n") || !strings.Contains(rules, "chain ERROR {\n") || strings.Count(rules, "192.0.2.1 drop\n") != 1 {
				t.Errorf("its rules are\n%s", rules)
			}
			leaveKubeProxyAlone(t, "legacy")
			if _, err := new(Remover).Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, saved(t, "legacy")); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}
