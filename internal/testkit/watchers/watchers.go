// Package watchers is many clients of a node-local server that keep nothing, for measurements.
package watchers

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// atOnce bounds the watchers that receive their full state at the same time.
const atOnce = 16

// Start has n clients watch the server at target until ctx ends, the i-th for node(i), each over a connection of
// its own. It returns when all have the full state. heard is called for each batch after that with the number of
// the watcher, on a goroutine of the watcher.
func Start(ctx context.Context, target string, n int, node func(i int) string, heard func(i int)) error {
	gate, begun := make(chan struct{}, atOnce), make(chan error, n)
	for i := range n {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(skim{})))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		gate <- struct{}{}
		go func() {
			stream, err := nodelocalv1.NewNodeLocalClient(conn).Watch(ctx, &nodelocalv1.WatchRequest{Node: node(i)})
			if err == nil {
				err = awaitBatch(stream)
			}
			<-gate
			begun <- err
			for err == nil {
				if err = awaitBatch(stream); err == nil {
					heard(i)
				}
			}
		}()
	}
	for range n {
		if err := <-begun; err != nil {
			return err
		}
	}
	return nil
}

// awaitBatch returns at the end of a batch.
func awaitBatch(stream grpc.ServerStreamingClient[nodelocalv1.Update]) error {
	for {
		if update, err := stream.Recv(); err != nil || update.GetSync() != nil {
			return err
		}
	}
}

// skim is a codec that decodes of an Update only whether it ends a batch.
type skim struct{}

func (skim) Name() string { return "proto" }

func (skim) Marshal(message any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2("proto").Marshal(message)
}

func (skim) Unmarshal(data mem.BufferSlice, message any) error {
	const sync = 6
	update := message.(*nodelocalv1.Update)
	for rest := data.Materialize(); len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return errors.New("not a field")
		}
		if number == sync {
			update.Sync = &nodelocalv1.Sync{}
		}
		rest = rest[n:]
	}
	return nil
}
