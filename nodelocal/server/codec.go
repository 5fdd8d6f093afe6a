package server

import (
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is used for all other messages
	"google.golang.org/grpc/mem"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
)

// part is an encoded Update. It is also the pool of gRPC's buffer for it, and so learns when gRPC has written it to the
// connection.
type part struct {
	data []byte
	// written is closed when gRPC does not need data any more.
	written chan struct{}
}

// leastBuffer is the capacity of a buffer, in bytes, from which gRPC returns the buffer to its pool.
const leastBuffer = 2 << 10

func newPart(data []byte) *part {
	return &part{data: slices.Grow(data, max(leastBuffer-len(data), 0)), written: make(chan struct{})}
}

// Get implements mem.BufferPool. Nobody calls it.
func (*part) Get(int) *[]byte { return nil }

// Put implements mem.BufferPool.
func (p *part) Put(*[]byte) { close(p.written) }

// codec is gRPC's codec for protobuf, except that it passes parts on as they are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message any) (mem.BufferSlice, error) {
	if p, ok := message.(*part); ok {
		return mem.BufferSlice{mem.NewBuffer(&p.data, p)}, nil
	}
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (codec) Unmarshal(data mem.BufferSlice, message any) error {
	return encoding.GetCodecV2("proto").Unmarshal(data, message)
}

// maxEncodings bounds the encodings in each of two generations, with their ports, in bytes: some 300,000 endpoints.
const maxEncodings = 32 << 20

// encodings caches the encodings of ports that several nodes may share. When the younger of two generations is full, it
// drops the older one.
type encodings struct {
	mu         sync.Mutex
	young, old map[*model.ServicePort][]protocol.Field
	// size is the memory of young, in bytes.
	size int
}

func (e *encodings) fields(port *model.ServicePort) []protocol.Field {
	// A port with endpoints on the node differs from other nodes' port.
	if len(port.Local) > 0 || slices.ContainsFunc(port.Cluster, func(e model.Endpoint) bool { return e.Local }) {
		return protocol.SetField(port)
	}
	e.mu.Lock()
	young, fields := e.young[port], e.old[port]
	e.mu.Unlock()
	if young != nil {
		return young
	}
	if fields == nil {
		fields = protocol.SetField(port)
	}
	e.keep(port, fields)
	return fields
}

func (e *encodings) keep(port *model.ServicePort, fields []protocol.Field) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.young[port] != nil {
		return
	}
	// About the memory of the map and the port: an address in a list is up to 64 bytes. Labels and annotations count as
	// addresses.
	size := 100 + 64*port.Addresses()
	for _, f := range fields {
		size += len(f)
	}
	if e.young == nil || e.size+size > maxEncodings {
		e.young, e.old, e.size = map[*model.ServicePort][]protocol.Field{}, e.young, 0
	}
	e.young[port] = fields
	e.size += size
}
