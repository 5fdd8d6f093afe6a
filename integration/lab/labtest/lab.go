// Package labtest is the harness of the tests that run in a lab: labs and connections that end with the
// test, the commands of this module inside a host of the lab, and an API server for them.
package labtest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/integration/lab"
	"github.com/nftproxy/nftproxy/integration/netns"
	"github.com/nftproxy/nftproxy/nft"
)

// New returns a lab that is closed when the test ends.
func New(t testing.TB) *lab.Lab {
	t.Helper()
	return NewWithBridge(t, "")
}

// NewWithBridge returns a lab whose pods are connected to a bridge of that name, as with lab.NewWithBridge.
func NewWithBridge(t testing.TB, bridge string) *lab.Lab {
	t.Helper()
	netns.Need(t)
	l, err := lab.NewWithBridge(bridge)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Conn returns a connection to the nf_tables of the host.
func Conn(t testing.TB, h *lab.Host) *nft.Conn {
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
func Nft(t testing.TB, h *lab.Host, stdin string, args ...string) string {
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
