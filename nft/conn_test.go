package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/nftproxy/nftproxy/internal/netlinkattr"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// commitAll commits the transaction or ends the test.
func commitAll(t testing.TB, c *Conn, tx Transaction) {
	t.Helper()
	if _, err := c.Commit(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// deafen has the socket drop all that the kernel answers.
func deafen(t *testing.T, c *Conn) {
	t.Helper()
	if err := c.socket.conn.(*kernelConn).SetBPF([]bpf.RawInstruction{{Op: unix.BPF_RET | unix.BPF_K}}); err != nil {
		t.Fatal(err)
	}
}

func TestConn(t *testing.T) {
	t.Run("after a fault", testConnAfterAFault)
	t.Run("listing", testConnListing)
	t.Run("reopens", testConnReopens)
	t.Run("is closed after Close", testConnAfterCloseIsClosed)
	t.Run("ends with its context", testConnContext)
	t.Run("deletes a rule by its handle in the generation that it was read in", testConnDeletesARule)
}

func testConnDeletesARule(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	table := &Table{Family: FamilyIP, Name: "nat", Chains: []*Chain{
		{Name: "PREROUTING", Rules: []Rule{NewRule(Counter{}), NewRule(Jump("KUBE-SERVICES")), NewRule(Return)}}, {Name: "KUBE-SERVICES"},
	}}
	commitAll(t, c, Diff(nil, table))
	generation, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have, err := c.ReadChain(t.Context(), FamilyIP, "nat", "PREROUTING")
	if err != nil || len(have.Chains) != 1 || len(have.Chains[0].Rules) != 3 {
		t.Fatalf("ReadChain = %v, %v, want the three rules of the chain alone", have, err)
	}
	remove := Transaction{Generation: generation, Steps: []Step{
		{Op: DeleteRule, Table: have, Chain: have.Chain("PREROUTING"), Handle: have.Kernel.Handles["PREROUTING"][1]},
		{Op: DeleteChain, Table: have, Chain: &Chain{Name: "KUBE-SERVICES"}},
	}}
	commitAll(t, c, Diff(nil, &Table{Family: FamilyIP, Name: "other"}))
	if _, err := c.Commit(t.Context(), remove); !errors.Is(err, ErrGenerationMoved) {
		t.Fatalf("Commit for an old generation = %v", err)
	}
	remove.Generation++
	commitAll(t, c, remove)
	want := &Table{Family: FamilyIP, Name: "nat", Chains: []*Chain{{Name: "PREROUTING", Rules: []Rule{NewRule(Counter{}), NewRule(Return)}}}}
	if got, err := c.ReadTable(t.Context(), FamilyIP, "nat"); err != nil || got.String() != want.String() {
		t.Errorf("left is %v, %v; want %v", got, err, want)
	}
	if _, err := c.Commit(t.Context(), Transaction{Steps: remove.Steps[:1]}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleting the rule again = %v", err)
	}
}

func testConnAfterAFault(t *testing.T) {
	table := &Table{Family: FamilyIP, Name: "t"}
	gone := &Table{Family: FamilyIP, Name: "gone"}
	refused := Transaction{}
	for range 5000 {
		refused.Steps = append(refused.Steps, Step{Op: DeleteTable, Table: gone})
	}
	for _, tc := range []struct {
		name  string
		fault func(t *testing.T, c *Conn)
	}{
		{"an answer that nobody read is passed over", func(t *testing.T, c *Conn) {
			request := netlink.Message{
				Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
				Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
			}
			if err := c.socket.send(c.socket.appendMessage(nil, &request)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a listing that nobody read is passed over", func(t *testing.T, c *Conn) {
			request := netlink.Message{
				Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: netlink.Request | netlink.Dump},
				Data:   []byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0},
			}
			if err := c.socket.send(c.socket.appendMessage(nil, &request)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a request without an answer ends in time", func(t *testing.T, c *Conn) {
			deafen(t, c)
			if _, err := c.Generation(t.Context()); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Generation = %v, want a time-out", err)
			}
		}},
		{"a commit without an answer ends in time", func(t *testing.T, c *Conn) {
			deafen(t, c)
			_, err := c.Commit(t.Context(), Diff(nil, &Table{Family: FamilyIP, Name: "other"}))
			var refused *CommitError
			if !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &refused) {
				t.Errorf("Commit = %v, want a time-out that is no refusal", err)
			}
		}},
		{"answers that did not fit are not waited for", func(t *testing.T, c *Conn) {
			if err := c.socket.conn.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
				t.Fatal(err)
			}
			_, err := c.Commit(t.Context(), refused)
			var e *CommitError
			if !errors.As(err, &e) || e.Step != "delete table ip gone" {
				t.Errorf("Commit = %v, want a CommitError", err)
			}
		}},
		{"a socket that fails is replaced", func(t *testing.T, c *Conn) {
			if err := c.socket.conn.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Generation(t.Context()); err == nil {
				t.Error("a closed socket answered")
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.EnterForTest(t)
			c := dial(t)
			commitAll(t, c, Diff(nil, table))
			c.patience, c.socket.patience = 50*time.Millisecond, 50*time.Millisecond
			tc.fault(t, c)
			c.patience = patience
			if c.socket != nil { // it was not replaced
				c.socket.patience = patience
			}
			// More than one call: an answer too many would be one for the next call too.
			for range 3 {
				if _, err := c.Generation(t.Context()); err != nil {
					t.Fatalf("after the fault: %v", err)
				}
				if got, err := c.ReadTable(t.Context(), FamilyIP, "t"); err != nil || got == nil {
					t.Fatalf("after the fault: ReadTable = %v, %v", got, err)
				}
			}
			commitAll(t, c, Diff(nil, &Table{Family: FamilyIP6, Name: "t"}))
		})
	}
}

func testConnListing(t *testing.T) {
	t.Run("may take longer than it waits for an answer", testConnReadsAListingThatTakesLongerThanItWaitsForAnAnswer)
}

func testConnReadsAListingThatTakesLongerThanItWaitsForAnAnswer(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	table := manyAddresses(200_000)
	commitAll(t, c, Diff(nil, table))
	awaitRehash(t, c, table)
	read := func() time.Duration {
		begin := time.Now()
		got, err := c.ReadTable(t.Context(), FamilyIP, table.Name)
		if err != nil {
			t.Fatal(err)
		}
		if n := got.Sets[0].Len(); n != 200_000 {
			t.Errorf("read %d elements, want 200,000", n)
		}
		return time.Since(begin)
	}
	// A busy machine may have made the listing before much slower: then the next one waits less.
	took := read()
	for range 5 {
		wait := took / 4
		c.socket.patience = wait
		if took = read(); took >= 2*wait {
			return
		}
	}
	t.Error("no listing took longer than the connection waits: this test shows nothing")
}

func testConnReopens(t *testing.T) {
	t.Run("in its own namespace", testConnReopensInItsOwnNamespace)
	t.Run("without the right to change namespaces", testConnReopensWithoutTheRightToChangeNamespaces)
}

func testConnReopensInItsOwnNamespace(t *testing.T) {
	elsewhere := make(chan func())
	go func() { // on a thread that stays in the namespace of the process
		runtime.LockOSThread()
		for f := range elsewhere {
			f()
		}
	}()
	defer close(elsewhere)
	ready := make(chan struct{})
	elsewhere <- func() { close(ready) }
	<-ready
	netns.EnterForTest(t)
	for _, config := range []Config{{}, {NetNS: namespaceFile(t)}} {
		c, err := Dial(config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		table := &Table{Family: FamilyIP, Name: "only-here"}
		commitAll(t, c, Replace(table))
		done := make(chan error)
		elsewhere <- func() {
			c.socket.conn.Close()
			_, err := c.Generation(t.Context())
			if err == nil {
				done <- errors.New("a closed socket answered")
				return
			}
			there, err := c.HasTable(t.Context(), FamilyIP, table.Name)
			if err == nil && !there {
				err = errors.New("the table is not there: another namespace was asked")
			}
			done <- err
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func namespaceFile(t *testing.T) int {
	t.Helper()
	f, err := os.Open(currentNamespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// kube-proxy's container has CAP_NET_ADMIN only. The test takes a namespace file that nobody can enter: dropping
// CAP_SYS_ADMIN would change this thread alone, and mdlayher/socket enters namespaces on another.
func testConnReopensWithoutTheRightToChangeNamespaces(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	if err := c.namespace.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(currentNamespace, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.namespace.file = file
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err == nil {
		t.Fatal("the namespace can be entered: this test shows nothing")
	}
	c.socket.conn.Close()
	if _, err := c.Generation(t.Context()); err == nil {
		t.Error("a closed socket answered")
	}
	if _, err := c.Generation(t.Context()); err != nil {
		t.Error(err)
	}
	another, err := c.Another()
	if err != nil {
		t.Fatal(err)
	}
	defer another.Close()
	if _, err := another.Generation(t.Context()); err != nil {
		t.Error(err)
	}
}

func testConnAfterCloseIsClosed(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Generation(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Generation = %v, want net.ErrClosed", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("a second Close = %v", err)
	}
}

func TestEachMessage(t *testing.T) {
	t.Run("refuses what is too short", testEachMessageRefusesWhatIsTooShort)
}

func testEachMessageRefusesWhatIsTooShort(t *testing.T) {
	whole := string(binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN)) + strings.Repeat("\x00", 12)
	for b, want := range map[string]error{
		"short": netlinkattr.ErrShort, whole + "short": netlinkattr.ErrShort, whole: nil,
		strings.Repeat("\xff", unix.NLMSG_HDRLEN): unix.EINVAL, strings.Repeat("\x00", unix.NLMSG_HDRLEN): unix.EINVAL,
	} {
		if err := eachMessage([]byte(b), func(reply) error { return nil }); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", b, err, want)
		}
	}
}

// A call whose context is done waits for nobody, sends nothing, and leaves the connection usable.
func testConnContext(t *testing.T) {
	netns.EnterForTest(t)
	c := dial(t)
	table := &Table{Family: FamilyIP, Name: "kube-proxy"}
	calls := map[string]func(context.Context) error{
		"Commit":     func(ctx context.Context) error { _, err := c.Commit(ctx, Diff(nil, table)); return err },
		"ReadTable":  func(ctx context.Context) error { _, err := c.ReadTable(ctx, FamilyIP, "kube-proxy"); return err },
		"ReadHeader": func(ctx context.Context) error { _, err := c.ReadHeader(ctx, FamilyIP, "kube-proxy"); return err },
		"HasTable":   func(ctx context.Context) error { _, err := c.HasTable(ctx, FamilyIP, "kube-proxy"); return err },
		"Generation": func(ctx context.Context) error { _, err := c.Generation(ctx); return err },
		"Probe":      func(ctx context.Context) error { return c.Probe(ctx, nil, everyFeature()...) },
		"Compare":    func(ctx context.Context) error { _, err := c.Compare(ctx, table, CompareOptions{}); return err },
		"ReadElements": func(ctx context.Context) error {
			_, err := c.ReadElements(ctx, FamilyIP, "kube-proxy", &Set{Name: "s", Key: Concat{IPDaddr}})
			return err
		},
	}
	before, err := c.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range calls {
		t.Run(name+" ends when its context is done already", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := call(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
		t.Run(name+" ends when its context is done while another call goes on", func(t *testing.T) {
			c.turn <- struct{}{}
			defer c.endTurn()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	}
	if after, err := c.Generation(t.Context()); err != nil || after != before {
		t.Errorf("the generation went from %d to %d (%v), so something was sent", before, after, err)
	}
}

// rawMessage is a message that this package would not write.
func rawMessage(typ uint16, data netlinkattr.List) message {
	return message{Message: netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | netlink.Create},
		Data:   data,
	}}
}

// commitRaw commits messages as they are.
func commitRaw(t testing.TB, c *Conn, messages ...message) {
	t.Helper()
	if err := c.use(t.Context(), func(s *socket) error { return s.commit(s.newBatch(messages, 0)) }); err != nil {
		t.Fatal(err)
	}
}

// The kernel gives these errors before it has done anything. A signal handler's interruption is nobody's business, and
// no call may wait for ever for a socket that is not going to be ready.
func TestConnSend(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault process.NetlinkFault
		want  error
	}{
		{"that is interrupted sends again", process.Fails("", unix.SYS_SENDMSG, unix.EINTR), nil},
		{"that would always block gives up in time", process.Fails("", unix.SYS_SENDMSG, unix.EAGAIN).Lasting(), os.ErrDeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns := netns.ForTest(t)
			await.NoLeaks(t)
			c, err := Dial(Config{NetNS: ns.FD()})
			if err != nil {
				t.Fatal(err)
			}
			c.patience, c.socket.patience = time.Second, time.Second
			outcome := make(chan error, 1)
			go func() {
				var failed error
				struck, err := tc.fault.Run(1, func() {
					_, failed = c.Commit(t.Context(), Diff(nil, &Table{Family: FamilyIP, Name: "t"}))
				})
				if err == nil && !struck {
					err = errors.New("nothing was sent")
				}
				outcome <- errors.Join(err, failed)
			}()
			select {
			case err := <-outcome:
				if !errors.Is(err, tc.want) {
					t.Errorf("Commit = %v, want %v", err, tc.want)
				}
			case <-time.After(await.Patience):
				t.Fatal("Commit waits for ever; see socket.send")
			}
			defer c.Close()
			there, err := c.HasTable(t.Context(), FamilyIP, "t")
			if err != nil || there != (tc.want == nil) {
				t.Errorf("the table is there: %v, %v", there, err)
			}
		})
	}
}

// The kernel takes a bounded number of parts.
func TestConnSendParts(t *testing.T) {
	netns.EnterForTest(t)
	c, want := dial(t), everything(FamilyIP)
	tx := Diff(nil, want)
	messages, err := tx.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.use(t.Context(), func(s *socket) error {
		b := s.newBatch(messages, 0)
		whole := slices.Concat(append(b.parts.done, b.parts.last)...)
		b.parts = batchParts{done: slices.Collect(slices.Chunk(whole, 4))}
		if len(b.parts.done) <= maxParts {
			t.Fatalf("there are only %d parts", len(b.parts.done))
		}
		return s.commit(b)
	}); err != nil {
		t.Fatal(err)
	}
	if rest := compare(t, c, want, CompareOptions{}); !rest.Empty() {
		t.Errorf("the kernel differs by\n%s", rest)
	}
}

func TestConnReceive(t *testing.T) {
	t.Run("that is interrupted receives again", func(t *testing.T) {
		ns := netns.ForTest(t)
		await.NoLeaks(t)
		c, err := Dial(Config{NetNS: ns.FD()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.patience, c.socket.patience = time.Second, time.Second
		var failed error
		struck, err := process.Fails("", unix.SYS_RECVMSG, unix.EINTR).Run(1, func() {
			_, failed = c.Generation(t.Context())
		})
		if err != nil || !struck || failed != nil {
			t.Errorf("Generation = %v; struck: %v, %v", failed, struck, err)
		}
	})
}
