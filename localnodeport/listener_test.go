package localnodeport

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

func TestListener(t *testing.T) {
	t.Run("does not listen once closed", testListenerThatWasClosedDoesNotListen)
}

// A retry may already be on its way when its Service goes.
func testListenerThatWasClosedDoesNotListen(t *testing.T) {
	l := &listener{
		at:     netip.MustParseAddrPort("127.0.0.1:30080"),
		count:  func(by int) { t.Errorf("%d listeners more", by) },
		failed: func() { t.Error("it tried") },
		cancel: func() {},
	}
	l.close()
	if err := l.open(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got error %v", err)
	}
}
