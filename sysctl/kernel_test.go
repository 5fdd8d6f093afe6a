package sysctl

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	tracking "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// TestMain has the kernel load its connection tracking, as rules that use it do.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // the tests that need the kernel are left out
	}
	conn, err := tracking.Dial(nil)
	if err == nil {
		_, err = conn.Stats()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root and connection tracking:", err)
		os.Exit(1)
	}
	conn.Close()
	os.Exit(m.Run())
}

// inNamespace runs fn in a network namespace of the test's own.
func inNamespace(t *testing.T, fn func() error) {
	t.Helper()
	if err := netns.ForTest(t).Do(fn); err != nil {
		t.Fatal(err)
	}
}

// withOwnMounts runs fn on a thread that has mounts of its own and dies with it.
func withOwnMounts(t *testing.T, fn func() error) {
	t.Helper()
	netns.Need(t)
	err := process.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("this test needs root: unshare: %w", err)
		}
		return fn()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// timeouts returns what the real files say that SetConntrack writes below.
func timeouts() map[string]int {
	found := map[string]int{}
	for _, name := range []string{"tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "udp_timeout_stream", "tcp_be_liberal"} {
		value, err := Tree{}.readInt(netfilter + "nf_conntrack_" + name)
		if err != nil {
			value = -1
		}
		found[name] = value
	}
	return found
}

func testRealKernelTakesWhatIsSet(t *testing.T) {
	established, closeWait := seconds(7200), seconds(601)
	config := conntrack{
		TCPEstablishedTimeout: &established, TCPCloseWaitTimeout: &closeWait,
		UDPTimeout: seconds(11), UDPStreamTimeout: seconds(121), TCPBeLiberal: true,
	}
	home := timeouts()
	inNamespace(t, func() error {
		if _, err := (Tree{}).SetConntrack(t.Context(), &config); err != nil {
			return err
		}
		want := map[string]int{"tcp_timeout_established": 7200, "tcp_timeout_close_wait": 601, "udp_timeout": 11, "udp_timeout_stream": 121, "tcp_be_liberal": 1}
		if diff := cmp.Diff(want, timeouts()); diff != "" {
			return fmt.Errorf("sysctls (-want +got):\n%s", diff)
		}
		return nil
	})
	if diff := cmp.Diff(home, timeouts()); diff != "" {
		t.Errorf("the namespace of this process changed (-before +after):\n%s", diff)
	}
}

// Other network namespaces than the initial one show nf_conntrack_max, but cannot change it.
func testLimitThatBelongsToTheHost(t *testing.T) {
	inNamespace(t, func() error {
		path := Tree{}.path(netfilter + "nf_conntrack_max")
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o222 != 0 {
			return fmt.Errorf("%s can be written to here: this is the initial namespace, or a kernel with a limit of its own for each", path)
		}
		limit, err := Tree{}.readInt(netfilter + "nf_conntrack_max")
		if err != nil {
			return err
		}
		enough := perCore(1, 1)
		if _, err := (Tree{}).SetConntrack(t.Context(), &enough); err != nil {
			return fmt.Errorf("although the limit is high enough: %w", err)
		}
		more := perCore(1, int32(limit)+1)
		_, err = Tree{}.SetConntrack(t.Context(), &more)
		want := fmt.Sprintf("sysctl net.netfilter.nf_conntrack_max is %d and cannot be set to %d: permission denied; "+
			"set it on the host, give this process a writable /proc/sys (privileged, host network), or set conntrack.maxPerCore to 0 to leave it alone", limit, limit+1)
		if err == nil || err.Error() != want {
			return fmt.Errorf("got error %v, want %s", err, want)
		}
		return nil
	})
}

// What container runtimes do to /proc/sys.
func testReadOnlyProcSys(t *testing.T) {
	tree := plant(t, node())
	withOwnMounts(t, func() error {
		if err := bindReadOnly(tree.path("proc/sys")); err != nil {
			return err
		}
		var lines []string
		right := perCore(1000, 2000)
		right.UDPTimeout = seconds(30)
		if _, err := tree.SetConntrack(logged(t.Context(), &lines), &right); err != nil {
			return fmt.Errorf("although everything is right: %w", err)
		}
		if got := strings.Join(lines, "\n"); !strings.Contains(got, `"Sysctls are read-only here, but right as they are"`) {
			return fmt.Errorf("the log does not tell: %s", got)
		}
		wrong := conntrack{UDPTimeout: seconds(31)}
		_, err := tree.SetConntrack(t.Context(), &wrong)
		const want = "sysctl net.netfilter.nf_conntrack_udp_timeout is 30 and cannot be set to 31: read-only file system; " +
			"set it on the host, give this process a writable /proc/sys (privileged, host network), or set conntrack.udpTimeout to 0s to leave it alone"
		if err == nil || err.Error() != want {
			return fmt.Errorf("got error %v, want %s", err, want)
		}
		return nil
	})
}

// bindReadOnly mounts a directory over itself, read-only, for this mount namespace only.
func bindReadOnly(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

func TestSetOOMScoreAdj(t *testing.T) {
	t.Run("of this process", testOOMScoreAdjOfThisProcess)
	t.Run("one that is right is not written", testOOMScoreAdjThatIsRightIsNotWritten)
}

func testOOMScoreAdjOfThisProcess(t *testing.T) {
	netns.Need(t)
	before, err := Tree{}.readInt(oomScoreFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Tree{}).SetOOMScoreAdj(999); err != nil {
		t.Fatal(err)
	}
	defer Tree{}.writeInt(oomScoreFile, before)
	if after, err := (Tree{}).readInt(oomScoreFile); err != nil || after != 999 {
		t.Errorf("got %d, error %v", after, err)
	}
	err = Tree{}.SetOOMScoreAdj(1001)
	if want := "oom_score_adj is 999 and cannot be set to 1001: invalid argument; "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got error %v, want %s…", err, want)
	}
}

func testOOMScoreAdjThatIsRightIsNotWritten(t *testing.T) {
	tree := plant(t, map[string]string{oomScoreFile: "-999\n"})
	if err := tree.SetOOMScoreAdj(-999); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(tree.Root, oomScoreFile)); err != nil || string(text) != "-999\n" {
		t.Errorf("the file became %q, error %v", text, err)
	}
}
