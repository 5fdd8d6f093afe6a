package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/flows"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	"golang.org/x/sys/unix"
)

var everyCall = flag.Bool("every-call", false, "kill the proxy at each of its system calls, not at some; run faults that take minutes too")

const (
	// someKills is how many times the proxy is killed without -every-call, at calls up to usualCalls and in commits.
	someKills  = 4
	usualCalls = 250
	// killedServices make a commit long enough to be killed in.
	killedServices = 400
)

// clusterState is a state of the cluster, as manifests and as tables.
type clusterState struct {
	dir  string
	want []*nft.Table
}

// newClusterState is many Services with endpoints whose addresses end with version.
func newClusterState(t *testing.T, services, version int) clusterState {
	t.Helper()
	var text strings.Builder
	for i := range services {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web-%[1]d}
spec: {clusterIP: 10.96.%[2]d.%[3]d, clusterIPs: [10.96.%[2]d.%[3]d], ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-%[1]d, labels: {kubernetes.io/service-name: web-%[1]d}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.%[4]d]}, {addresses: [10.244.1.100]}]
`, i, i/250, i%250+1, version)
	}
	s := clusterState{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "manifests.yaml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := manifests.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	config := compiler.Default()
	config.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	if s.want, err = flows.Compile(&objects, tracker.Options{NodeName: lab.NodeName}, config); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKill(t *testing.T) {
	t.Run("leaves nothing half", testKillLeavesNothingHalf)
}

// The proxy is killed at its n-th system call that concerns netlink, and in commits. The kernel has one generation of
// rules or the other, and the next process gets everything right.
func testKillLeavesNothingHalf(t *testing.T) {
	f := newTroubled(t)
	states := []clusterState{newClusterState(t, killedServices, 1), newClusterState(t, killedServices, 2)}
	applied := int64(0) // which of them the kernel has
	run := func(state clusterState) {
		t.Helper()
		p := f.start(t, "--manifests="+state.dir)
		p.Says(t, firstSyncLine)
		if err := lab.TableError(f.conn, state.want); err != nil {
			t.Errorf("the next process has not put its rules in the kernel: %v", err)
		}
		if err := p.Cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.Wait()
		if there, err := f.conn.HasTable(t.Context(), nft.FamilyIP, compiler.StandInName); there || err != nil {
			t.Errorf("stand-ins are left: %v, %v", there, err)
		}
	}
	run(states[0])
	kill := func(where string, n int64, k killer) (killed bool) {
		t.Helper()
		from, to := states[n%2], states[(n+1)%2]
		if applied != n%2 {
			run(from)
		}
		killed = k.run(t, f, to)
		if old, now := lab.TableError(f.conn, from.want), lab.TableError(f.conn, to.want); old != nil && now != nil {
			t.Errorf("killed %s: the kernel has neither the old rules nor the new: %v", where, now)
		}
		run(to)
		applied = (n + 1) % 2
		return killed
	}
	for n := int64(1); ; n++ {
		at := n
		if !*everyCall {
			if at = 1 + rand.Int64N(usualCalls); n > someKills {
				break
			}
		}
		if !kill(fmt.Sprintf("at system call %d", at), at, killer{at: at}) && *everyCall {
			t.Logf("killed at each of %d system calls", n-1)
			break
		}
	}
	for range someKills {
		delay := time.Duration(rand.Int64N(int64(10 * time.Millisecond)))
		kill(fmt.Sprintf("%v after the start of a commit", delay), rand.Int64N(2), killer{during: delay})
	}
}

// killer kills a proxy at its at-th system call or, if that is 0, during its first long commit.
type killer struct {
	at     int64
	during time.Duration
}

// longCommit is more bytes than a message has that is not a commit of Services.
const longCommit = 1 << 14

// run reports whether the proxy was killed before it had started.
func (k killer) run(t *testing.T, f *troubled, state clusterState) bool {
	t.Helper()
	var calls atomic.Int64
	var killed atomic.Bool
	pid := make(chan int, 1)
	kill := func() {
		if killed.CompareAndSwap(false, true) {
			_ = unix.Kill(<-pid, unix.SIGKILL)
		}
	}
	judge := func(c *process.Call) process.Verdict {
		switch {
		case k.at > 0 && calls.Add(1) == k.at:
			kill()
		case k.at == 0 && c.Number() == unix.SYS_SENDMSG && len(c.Message()) > longCommit:
			time.AfterFunc(k.during, kill)
		}
		return process.Pass
	}
	p := f.startFiltered(t, process.Calls(process.Judged, append(process.Netlink, unix.SYS_SOCKET)...), judge, "--manifests="+state.dir)
	pid <- p.Cmd.Process.Pid
	ended := make(chan struct{})
	go func() {
		_ = p.Wait()
		close(ended)
	}()
	await.Until(t, "the proxy is killed, or has started", func() error {
		select {
		case <-ended:
			return nil
		default:
		}
		if !strings.Contains(p.Output(), firstSyncLine) {
			return fmt.Errorf("it has made %d system calls", calls.Load())
		}
		return nil
	})
	early := killed.Load()
	kill()
	<-ended
	return early
}
