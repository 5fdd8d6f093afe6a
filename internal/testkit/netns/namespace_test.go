package netns_test

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/netns"
)

// What a test started may come when the namespace is closed, such as a connection that an HTTP client keeps on dialing.
// It must not enter another namespace, and the race detector must not blame all tests that run.
func TestDoBesideClose(t *testing.T) {
	netns.Need(t)
	for range 100 {
		n, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- n.Do(func() error { return nil }) }()
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		<-ended
		if err := n.Do(func() error { return nil }); err == nil {
			t.Fatal("Do works in a closed namespace")
		}
	}
}
