package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// listen opens a monitor of no table.
func listen(t testing.TB, c *Conn) *Monitor {
	t.Helper()
	m, err := c.Monitor(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// next waits for a notice.
func next(t testing.TB, l *Monitor) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n, err := l.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkSilence checks that no notice is there.
func checkSilence(t testing.TB, l *Monitor) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if n, err := l.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Next = %v, %v, want nothing", n, err)
	}
}

func generation(t testing.TB, c *Conn) uint32 {
	t.Helper()
	g, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestMonitor(t *testing.T) {
	t.Run("notices each commit until it leaves", testMonitorNoticesCommits)
	t.Run("says when events did not fit", testMonitorWhoseEventsDoNotFitSaysSo)
	t.Run("ends", testMonitorEnds)
}

func testMonitorNoticesCommits(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	l := listen(t, c)
	checkSilence(t, l)

	// What the nft program commits. It describes elements too, which the filter drops.
	for _, command := range []string{
		"add table ip t; add set ip t s { type ipv4_addr; }; add element ip t s { 10.0.0.1, 10.0.0.2 }",
		"add table ip6 t",
		"flush ruleset",
	} {
		runNft(t, command+"\n", "-f", "-")
		n := next(t, l)
		if want := generation(t, c); n.Generation != want || n.Process != "nft" || n.TID == 0 || n.PID != 0 || n.Lost {
			t.Errorf("%s: noticed %+v, want generation %d by the thread of an nft that has ended", command, n, want)
		}
		checkSilence(t, l)
	}

	// Our own commits, by a thread with a name and a number of its own.
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	tid := commitInNamedThread(t, c, Diff(nil, everything(FamilyIP)))
	n, own := next(t, l), strings.TrimSpace(string(comm))
	if n.PID != uint32(os.Getpid()) || n.Process != own || n.TID != tid || n.Generation != generation(t, c) {
		t.Errorf("noticed %+v, want process %d, %s", n, os.Getpid(), own)
	}
	if got, want := n.String(), fmt.Sprintf("generation %d by %s (pid %d)", n.Generation, own, os.Getpid()); got != want {
		t.Errorf("%q, want %q", got, want)
	}

	// Unheard while it has left.
	for range 2 {
		if err := l.Leave(); err != nil {
			t.Fatal(err)
		}
	}
	commitAll(t, c, Replace(everything(FamilyIP)))
	checkSilence(t, l)
	for range 2 {
		if err := l.Join(); err != nil {
			t.Fatal(err)
		}
	}
	checkSilence(t, l)
	commitAll(t, c, Remove(FamilyIP, "kube-proxy"))
	if n := next(t, l); n.Generation != generation(t, c) {
		t.Errorf("noticed %+v", n)
	}

	// A refused commit makes no generation.
	if _, err := c.Commit(t.Context(), Transaction{Steps: []Step{{Op: DeleteTable, Table: &Table{Family: FamilyIP, Name: "gone"}}}}); err == nil {
		t.Error("deleting what is not there was no error")
	}
	checkSilence(t, l)
}

// commitInNamedThread commits in another thread than the process's first one. It gives the thread a name and returns
// its id. The thread lives as long as the test.
func commitInNamedThread(t *testing.T, c *Conn, tx Transaction) (tid uint32) {
	t.Helper()
	committed, over := make(chan error), make(chan struct{})
	t.Cleanup(func() { close(over) })
	var commit func()
	commit = func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and its name with it
		if unix.Gettid() == os.Getpid() {
			go commit() // on another thread, while this goroutine has the first one
			<-over
			return
		}
		tid = uint32(unix.Gettid())
		err := os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", tid), []byte("committer"), 0)
		if err == nil {
			_, err = c.Commit(context.Background(), tx)
		}
		committed <- err
		<-over
	}
	go commit()
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	return tid
}

func testMonitorWhoseEventsDoNotFitSaysSo(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	l := listen(t, c)
	if err := l.socket.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	table := &Table{Family: FamilyIP, Name: "t"}
	const commits = 200
	for range commits {
		commitAll(t, c, Replace(table))
	}
	lost, heard := 0, 0
	for ; lost == 0; heard++ {
		if next(t, l).Lost {
			lost++
		}
	}
	if heard >= commits {
		t.Errorf("%d notices of %d commits", heard, commits)
	}
	// It goes on after that.
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		_, err := l.Next(ctx)
		cancel()
		if err != nil {
			break
		}
	}
	commitAll(t, c, Replace(table))
	n := next(t, l)
	for last := generation(t, c); n.Generation != last && !n.Lost; { // on a busy machine there may be earlier ones
		n = next(t, l)
	}
	if n.Lost {
		t.Errorf("noticed %+v", n)
	}
}

func testMonitorEnds(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	t.Run("when its context does", func(t *testing.T) {
		l := listen(t, c)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := l.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next = %v", err)
		}
		// Notices that came meanwhile are heard with another context.
		commitAll(t, c, Replace(&Table{Family: FamilyIP, Name: "t"}))
		next(t, l)
	})
	t.Run("when it is closed", func(t *testing.T) {
		l := listen(t, c)
		time.AfterFunc(20*time.Millisecond, func() { l.Close() })
		if _, err := l.Next(context.Background()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Next = %v", err)
		}
	})
	t.Run("without privileges", func(t *testing.T) {
		netns.EnterForTest(t)
		c := dial(t)
		withoutCapability(t, unix.CAP_NET_ADMIN)
		if _, err := c.Monitor(t.Context(), ""); !errors.Is(err, unix.EPERM) {
			t.Errorf("Monitor = %v, want EPERM", err)
		}
	})
}

// How long after the nft program was started to flush the ruleset the notice is there.
func BenchmarkMonitorHearsAFlush(b *testing.B) {
	netns.EnterForTest(b)
	c := dial(b)
	l := listen(b, c)
	table := manyServices(10_000)
	var sum, worst time.Duration
	for b.Loop() {
		b.StopTimer()
		commitAll(b, c, Replace(table))
		next(b, l)
		heard := make(chan time.Time)
		go func() {
			if _, err := l.Next(context.Background()); err == nil {
				heard <- time.Now()
			}
		}()
		b.StartTimer()
		begin := time.Now()
		runNft(b, "", "flush", "ruleset")
		took := (<-heard).Sub(begin)
		sum, worst = sum+took, max(worst, took)
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N)/1000, "ms-to-notice")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms-at-most")
}

// What a listener costs those who commit: 60,000 elements.
func BenchmarkCommitBesideAMonitor(b *testing.B) {
	for _, bc := range []struct {
		name  string
		setUp func(b *testing.B, c *Conn) *Monitor
		leave bool
	}{
		{"nobody listens", func(*testing.B, *Conn) *Monitor { return nil }, false},
		{"a filtered listener is joined", func(b *testing.B, c *Conn) *Monitor { return listen(b, c) }, false},
		{"a filtered listener leaves meanwhile", func(b *testing.B, c *Conn) *Monitor { return listen(b, c) }, true},
		{"an unfiltered listener is joined", func(b *testing.B, c *Conn) *Monitor {
			l := listen(b, c)
			if err := l.socket.conn.(*kernelConn).RemoveBPF(); err != nil {
				b.Fatal(err)
			}
			return l
		}, false},
	} {
		b.Run(bc.name, func(b *testing.B) {
			netns.EnterForTest(b)
			c := dial(b)
			table := manyServices(20_000)
			l := bc.setUp(b, c)
			fastest := time.Hour
			for b.Loop() {
				if bc.leave {
					if err := l.Leave(); err != nil {
						b.Fatal(err)
					}
				}
				begin := time.Now()
				commitAll(b, c, Diff(nil, table))
				fastest = min(fastest, time.Since(begin))
				if bc.leave {
					if err := l.Join(); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				commitAll(b, c, Remove(table.Family, table.Name))
				b.StartTimer()
			}
			b.ReportMetric(float64(fastest.Microseconds())/1000, "ms-at-least")
		})
	}
}

// FuzzEvents shows that no series of messages makes a Monitor fall over: any process with CAP_NET_ADMIN can
// commit what the kernel then describes. The first byte of the data says how many bytes the first message
// has, and so on; each begins with its type.
func FuzzEvents(f *testing.F) {
	for _, family := range Families {
		table := everything(family)
		tx := Diff(nil, table)
		tx.Append(Diff(table, nil))
		messages, err := tx.encode()
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range messages {
			if len(m.Data) < 255 {
				f.Add(append([]byte{byte(len(m.Data) + 1), byte(m.Header.Type)}, m.Data...))
			}
		}
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &Monitor{table: "kube-proxy", sets: map[identity]*Set{{FamilyIP, "cluster-ips"}: {Name: "cluster-ips", Key: Concat{IPDaddr}}}}
		for len(data) > 1 {
			length := min(int(data[0]), len(data)-1)
			message := data[1 : 1+length]
			data = data[1+length:]
			if length == 0 {
				continue
			}
			_ = m.take(reply{syscall.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | uint16(message[0])}, message[1:]})
			for _, e := range m.pending {
				if e.Kind == "" || e.Table != m.table && e.What != "" {
					t.Errorf("told %+v", e)
				}
			}
			m.pending = nil
		}
	})
}
