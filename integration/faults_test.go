package integration

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

var everyCall = flag.Bool("every-call", false, "kill the proxy at each of its system calls, not at some; run faults that take minutes too")

const (
	// someKills is the number of kills without -every-call, at calls up to usualCalls and again in commits.
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
		if there, err := f.conn.HasTable(t.Context(), nft.FamilyIP, compiler.TemporaryName); there || err != nil {
			t.Errorf("temporary tables are left: %v, %v", there, err)
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
			calls.Add(1)
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
	if k.at == 0 && calls.Load() == 0 {
		t.Error("no commit was long")
	}
	return early
}

var pause = flag.Duration("pause", 5*time.Second, "how long TestPause stops the proxy")

// A proxy that is stopped (SIGSTOP), as when a hypervisor stops its machine, answers nothing; the rules work
// on. When it goes on, it catches up by itself.
func TestPause(t *testing.T) {
	t.Run("loses no change", testPauseLosesNoChange)
}

func testPauseLosesNoChange(t *testing.T) {
	f := newWithServer(t)
	f.createFaultService(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// A signal takes its time: each thread stops when it comes to it.
	await.Until(t, "all threads are stopped", func() error {
		threads, err := procfs.AllThreads(p.Cmd.Process.Pid)
		for _, thread := range threads {
			stat, err := thread.Stat()
			if err != nil || stat.State != "T" {
				return fmt.Errorf("thread %d is in state %q, %v", thread.PID, stat.State, err)
			}
		}
		return err
	})
	f.moveFaultService(t, "10.244.1.6")
	time.Sleep(*pause)
	if codes, body, err := f.health(); err == nil {
		t.Errorf("a stopped process answers %s %s", codes, body)
	}
	f.reaches(t, "first")
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.reaches(t, "second")
	f.recovers(t)
	end()
}

// TestClockJumps has the proxy's wall clock jump. Nothing but what people read may depend on it.
func TestClockJumps(t *testing.T) {
	t.Run("in either direction delay no change", testClockJumpsDelayNoChange)
}

func testClockJumpsDelayNoChange(t *testing.T) {
	f := newWithServer(t)
	pods := []string{"first", "second"}
	f.createFaultService(t)
	var jump atomic.Int64 // in nanoseconds
	p := f.startWithClock(t, &jump, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

	// The server's certificate is valid for a day to either side.
	for i, by := range []time.Duration{10 * time.Hour, -10 * time.Hour, 0} {
		jump.Store(int64(by))
		await.Until(t, fmt.Sprintf("the proxy's clock has jumped by %v", by), func() error { return f.clockIs(time.Now().Add(by)) })
		f.moveFaultService(t, fmt.Sprintf("10.244.1.%d", 5+(i+1)%2))
		f.reaches(t, pods[(i+1)%2])
		f.becomes(t, "200 200")
	}
	end()
}

// clockIs says what is wrong with the time that health tells.
func (f *troubled) clockIs(want time.Time) error {
	_, body, err := f.health()
	if err != nil {
		return err
	}
	var told struct{ CurrentTime time.Time }
	if err := json.Unmarshal([]byte(body), &told); err != nil {
		return err
	}
	if off := told.CurrentTime.Sub(want).Abs(); off > time.Minute {
		return fmt.Errorf("it is off by %v", off)
	}
	return nil
}

// startWithClock starts the proxy with a wall clock that is off by jump. Its other clocks are the machine's.
func (f *troubled) startWithClock(t *testing.T, jump *atomic.Int64, args ...string) *lab.Process {
	t.Helper()
	p := lab.NewProcess(t, exec.Command(lab.Binary(t, "kube-proxy"), append(f.args(), args...)...))
	tell := func(c *process.Call) process.Verdict {
		now := time.Now().Add(time.Duration(jump.Load()))
		timespec := binary.NativeEndian.AppendUint64(nil, uint64(now.Unix()))
		c.Store(c.Argument(1), binary.NativeEndian.AppendUint64(timespec, uint64(now.Nanosecond())))
		return process.Return(0)
	}
	if err := process.OnThread(func() error {
		err := unix.Setns(int(f.lab.Node.NetNS().Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = process.Install(process.WallClock(process.Judged), tell)
		}
		if err == nil {
			err = process.StartWithoutVDSO(p.Cmd)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// faultAddress is the ClusterIP of the Service that clients dial while something goes wrong.
const faultAddress = "10.96.0.77"

// createFaultService starts the pods first (10.244.1.5) and second (10.244.1.6), and creates the Service
// at faultAddress, which leads to the first.
func (f *withServer) createFaultService(t *testing.T) {
	t.Helper()
	servePod(t, f.lab, "first", "10.244.1.5")
	servePod(t, f.lab, "second", "10.244.1.6")
	service, slice := serviceAt("fault", faultAddress, "10.244.1.5")
	lab.Create(t, f.server, service, slice)
}

// moveFaultService has the Service lead to another endpoint.
func (f *withServer) moveFaultService(t *testing.T, endpoint string) {
	t.Helper()
	_, slice := serviceAt("fault", faultAddress, endpoint)
	lab.Update(t, f.server, slice)
}

func (f *withServer) deleteFaultService(t *testing.T) {
	t.Helper()
	service, slice := serviceAt("fault", faultAddress)
	lab.Delete(t, f.server, service, slice)
}

// reaches waits until a new connection to faultAddress reaches a pod.
func (f *troubled) reaches(t *testing.T, pod string) {
	t.Helper()
	f.reachesWithin(t, await.Patience, pod)
}

func (f *troubled) reachesWithin(t *testing.T, patience time.Duration, pod string) {
	t.Helper()
	f.reachesAt(t, patience, faultAddress+":80", pod)
}

func (f *troubled) reachesAt(t *testing.T, patience time.Duration, address, pod string) {
	t.Helper()
	await.Within(t, patience, address+" leads to "+pod, func() error {
		conn, name, err := dialAt(f.lab.Client, address)
		if err != nil {
			return err
		}
		conn.Close()
		if name != pod {
			return fmt.Errorf("it leads to %s", name)
		}
		return nil
	})
}

// dialThroughout waits until the proxy is healthy and clients reach the first pod. From then on until end is called no
// connection to faultAddress may fail. At the end the proxy uses no more than before, and SIGTERM ends it with code 0.
func (f *withServer) dialThroughout(t *testing.T, p *lab.Process) (end func()) {
	t.Helper()
	f.reaches(t, "first")
	f.becomes(t, "200 200")
	before := f.usage(t, p)
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	return func() {
		t.Helper()
		stop()
		f.comesBackTo(t, p, before)
		if err := p.Stop(t); err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	}
}

// recovers waits until health is good and has no problem.
func (f *troubled) recovers(t *testing.T) {
	t.Helper()
	await.Until(t, "health has no problem any more", func() error {
		if codes, body, err := f.health(); codes != "200 200" || strings.Contains(body, "problems") {
			return fmt.Errorf("%s %s, %v", codes, body, err)
		}
		return nil
	})
}
