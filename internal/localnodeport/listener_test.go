package localnodeport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/nftproxy/nftproxy/model"
	"k8s.io/klog/v2"
)

func TestListener(t *testing.T) {
	t.Run("does not listen once closed", testListenerThatWasClosedDoesNotListen)
	t.Run("logs nothing when the process stops", testListenerLogsNothingWhenTheProcessStops)
}

// A retry may already be on its way when its Service goes.
func testListenerThatWasClosedDoesNotListen(t *testing.T) {
	l := &listener{
		forwarder: New(Options{
			OnListeners:     func(_ model.Family, count int) { t.Errorf("%d listeners", count) },
			OnListenFailure: func(model.Family) { t.Error("it tried") },
		}),
		at:     netip.MustParseAddrPort("127.0.0.1:30080"),
		cancel: func() {},
	}
	l.close()
	if err := l.open(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got error %v", err)
	}
}

// The last Sync before the process stops may bring a node port.
func testListenerLogsNothingWhenTheProcessStops(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, args string) { t.Errorf("it logs %s", args) }, funcr.Options{})))
	stop()
	New(Options{}).listen(ctx, netip.MustParseAddrPort(taken.Addr().String()), &model.ServicePort{})
}
