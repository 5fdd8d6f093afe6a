package server

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is used for all other messages
	"google.golang.org/grpc/mem"

	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal/protocol"
)

// part is an Update that is encoded already.
type part struct{ data []byte }

// codec is gRPC's for protobuf, and passes parts on as they are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message any) (mem.BufferSlice, error) {
	if p, ok := message.(*part); ok {
		return mem.BufferSlice{mem.SliceBuffer(p.data)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (codec) Unmarshal(data mem.BufferSlice, message any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, message)
}

// leastEncodings is how many encodings a generation has at least.
const leastEncodings = 4096

// encodings remembers the encodings of ports, which many nodes have in common. There are two generations of them: what was
// not asked for while the younger one filled is forgotten.
type encodings struct {
	mu         sync.Mutex
	young, old map[*model.ServicePort][]protocol.Field
	// size is how many the younger one may have.
	size int
}

// expect says that a batch has n ports.
func (e *encodings) expect(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.size = max(e.size, n+n/4, leastEncodings)
}

func (e *encodings) of(port *model.ServicePort) []protocol.Field {
	e.mu.Lock()
	fields := e.young[port]
	if fields == nil {
		fields = e.old[port]
	}
	e.mu.Unlock()
	if fields == nil {
		fields = protocol.SetField(port)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.young[port] != nil {
		return fields
	}
	if e.young == nil || len(e.young) >= max(e.size, leastEncodings) {
		e.young, e.old = map[*model.ServicePort][]protocol.Field{}, e.young
	}
	e.young[port] = fields
	return fields
}
