package nft

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

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
