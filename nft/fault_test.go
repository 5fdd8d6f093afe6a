package nft

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/internal/testkit/process"
	"golang.org/x/sys/unix"
)

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
			c.patience, c.socket.patience = 200*time.Millisecond, 200*time.Millisecond
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
			case <-time.After(5 * time.Second):
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

func TestConnReceive(t *testing.T) {
	t.Run("that is interrupted receives again", func(t *testing.T) {
		ns := netns.ForTest(t)
		await.NoLeaks(t)
		c, err := Dial(Config{NetNS: ns.FD()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.patience, c.socket.patience = 200*time.Millisecond, 200*time.Millisecond
		var failed error
		struck, err := process.Fails("", unix.SYS_RECVMSG, unix.EINTR).Run(1, func() {
			_, failed = c.Generation(t.Context())
		})
		if err != nil || !struck || failed != nil {
			t.Errorf("Generation = %v; struck: %v, %v", failed, struck, err)
		}
	})
}
