package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"golang.org/x/sys/unix"
)

// nextCommit waits for the end of a commit.
func nextCommit(t testing.TB, m *Monitor) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		e, err := m.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == EventGeneration {
			return e
		}
	}
}

// checkSilence checks that no event is there.
func checkSilence(t testing.TB, m *Monitor) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if e, err := m.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Next = %v, %v, want nothing", e, err)
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
	t.Run("tells of each commit", testMonitorTellsOfCommits)
	t.Run("says when events did not fit", testMonitorWhoseEventsDoNotFitSaysSo)
	t.Run("ends", testMonitorEnds)
}

func testMonitorTellsOfCommits(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	m := monitor(t, c, "kube-proxy")
	checkSilence(t, m)

	// What the nft program commits.
	for _, command := range []string{
		"add table ip t; add set ip t s { type ipv4_addr; }; add element ip t s { 10.0.0.1, 10.0.0.2 }",
		"add table ip6 t",
		"flush ruleset",
	} {
		runNft(t, command+"\n", "-f", "-")
		e := nextCommit(t, m)
		if want := generation(t, c); e.Generation != want || e.Process != "nft" || e.TID == 0 || e.PID != 0 || e.Lost {
			t.Errorf("%s: told %+v, want generation %d by the thread of an nft that has ended", command, e, want)
		}
		checkSilence(t, m)
	}

	// Our own commits, by a thread with a name and a number of its own.
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	tid := commitInNamedThread(t, c, Diff(nil, everything(FamilyIP)))
	e, own := nextCommit(t, m), strings.TrimSpace(string(comm))
	if e.PID != uint32(os.Getpid()) || e.Process != own || e.TID != tid || e.Generation != generation(t, c) {
		t.Errorf("told %+v, want process %d, %s", e, os.Getpid(), own)
	}
	if got, want := e.String(), fmt.Sprintf("generation %d by %s (pid %d)", e.Generation, own, os.Getpid()); got != want {
		t.Errorf("%q, want %q", got, want)
	}

	// A refused commit makes no generation.
	if _, err := c.Commit(t.Context(), Transaction{Steps: []Step{{Op: DeleteTable, Table: &Table{Family: FamilyIP, Name: "gone"}}}}); err == nil {
		t.Error("deleting what is not there was no error")
	}
	checkSilence(t, m)
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
	m := monitor(t, c, "t")
	if err := m.socket.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	table := &Table{Family: FamilyIP, Name: "t"}
	const commits = 200
	for range commits {
		commitAll(t, c, Replace(table))
	}
	told := 0
	for !nextCommit(t, m).Lost {
		told++
	}
	if told >= commits {
		t.Errorf("told %d commits of %d", told, commits)
	}
	// It goes on after that.
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		_, err := m.Next(ctx)
		cancel()
		if err != nil {
			break
		}
	}
	commitAll(t, c, Replace(table))
	e := nextCommit(t, m)
	for last := generation(t, c); e.Generation != last && !e.Lost; { // on a busy machine there may be earlier ones
		e = nextCommit(t, m)
	}
	if e.Lost {
		t.Errorf("told %+v", e)
	}
}

func testMonitorEnds(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	t.Run("when its context does", func(t *testing.T) {
		m := monitor(t, c, "t")
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := m.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next = %v", err)
		}
		// Events that came meanwhile are told with another context.
		commitAll(t, c, Replace(&Table{Family: FamilyIP, Name: "t"}))
		nextCommit(t, m)
	})
	t.Run("without privileges", func(t *testing.T) {
		netns.EnterForTest(t)
		c := dial(t)
		withoutCapability(t, unix.CAP_NET_ADMIN)
		if _, err := c.Monitor(t.Context(), "t"); !errors.Is(err, unix.EPERM) {
			t.Errorf("Monitor = %v, want EPERM", err)
		}
	})
}

// What a monitor costs those who commit 60,000 elements, also in another namespace.
func BenchmarkCommitBesideAMonitor(b *testing.B) {
	for _, bc := range []struct {
		name string
		open func(b *testing.B, c *Conn)
	}{
		{"none", func(*testing.B, *Conn) {}},
		{"one in the namespace", func(b *testing.B, c *Conn) { monitor(b, c, "kube-proxy") }},
		{"one in another namespace", func(b *testing.B, _ *Conn) {
			another, err := Dial(Config{NetNS: netns.ForTest(b).FD()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { another.Close() })
			monitor(b, another, "kube-proxy")
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			netns.EnterForTest(b)
			c := dial(b)
			table := manyServices(20_000)
			bc.open(b, c)
			fastest := time.Hour
			for b.Loop() {
				begin := time.Now()
				commitAll(b, c, Diff(nil, table))
				fastest = min(fastest, time.Since(begin))
				b.StopTimer()
				commitAll(b, c, Remove(table.Family, table.Name))
				b.StartTimer()
			}
			b.ReportMetric(float64(fastest.Microseconds())/1000, "ms-at-least")
		})
	}
}

// What it costs to find out that nobody has committed.
func BenchmarkGeneration(b *testing.B) {
	netns.EnterForTest(b)
	c := dial(b)
	for b.Loop() {
		generation(b, c)
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
		m := &Monitor{subscription: &subscription[Event]{}, table: "kube-proxy", sets: map[identity]*Set{{FamilyIP, "cluster-ips"}: {Name: "cluster-ips", Key: Concat{IPDaddr}}}}
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
