package lab

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
	"github.com/nftproxy/nftproxy/nft"
)

// ForTest returns a lab that is closed when the test ends.
func ForTest(t testing.TB) *Lab {
	t.Helper()
	return ForTestWithBridge(t, "")
}

// ForTestWithBridge returns a lab whose pods are connected to a bridge of that name, as with NewWithBridge.
func ForTestWithBridge(t testing.TB, bridge string) *Lab {
	t.Helper()
	netns.Need(t)
	l, err := NewWithBridge(bridge)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Conn returns a connection to the nf_tables of the host.
func Conn(t testing.TB, h *Host) *nft.Conn {
	t.Helper()
	c, err := nft.Dial(nft.Config{NetNS: int(h.NetNS().Fd())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Nft runs the nft program in the host and returns its output. The tests compare with that program;
// the proxy never needs it.
func Nft(t testing.TB, h *Host, stdin string, args ...string) string {
	t.Helper()
	var out strings.Builder
	err := h.Do(func() error {
		cmd := exec.Command("nft", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
		return cmd.Run()
	})
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}
