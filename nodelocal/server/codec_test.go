package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
)

func TestEncodings(t *testing.T) {
	t.Run("are bounded by bytes", func(t *testing.T) {
		var e encodings
		long := []protocol.Field{make(protocol.Field, 1<<20)}
		for range 5 * maxEncodings >> 20 {
			e.keep(&model.ServicePort{}, long)
		}
		if kept := (len(e.young) + len(e.old)) << 20; kept > 2*maxEncodings || kept < maxEncodings {
			t.Errorf("%d bytes are kept, want up to two generations of %d", kept, maxEncodings)
		}
	})
	t.Run("count the ports that they belong to", func(t *testing.T) {
		var e encodings
		long := map[string]string{"example.com/note": strings.Repeat("x", 1<<20)}
		for range 10 * maxEncodings >> 20 {
			e.keep(&model.ServicePort{ServiceAnnotations: long}, nil)
		}
		if kept := (len(e.young) + len(e.old)) << 20; kept > 2*maxEncodings {
			t.Errorf("%d bytes of annotations are kept, want up to two generations of %d", kept, maxEncodings)
		}
	})
	t.Run("are shared by those who ask again", func(t *testing.T) {
		var e encodings
		port := &model.ServicePort{Cluster: []model.Endpoint{{Remote: true}}}
		if first, again := e.fields(port), e.fields(port); &first[0][0] != &again[0][0] {
			t.Error("a port was encoded twice")
		}
	})
}

// If gRPC did not tell of buffers of this size, streams would wait for ever.
func TestLeastBuffer(t *testing.T) {
	if mem.IsBelowBufferPoolingThreshold(leastBuffer) {
		t.Errorf("gRPC does not tell of buffers of %d bytes", leastBuffer)
	}
}
