package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Run follows the server at target, and calls backend with the changes of the node, until ctx ends; then it returns
// nil. It returns an error for an invalid target or invalid options, and the errors of [Client.Run]. After other faults of
// the server, and after a Sync that fails, it tries again. target is unix:///PATH or tcp://HOST:PORT.
func Run(ctx context.Context, target string, backend model.Backend, options Options) error {
	client, err := NewClient(target, options)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop() // a refused client ends the loop too
		ended <- client.Run(ctx)
	}()
	err = model.NewLoop(client, backend, client.options.Loop).Run(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// Client follows a server. It is a model.Feed: a model.Loop carries its changes to a backend.
type Client struct {
	options Options
	target  string
	state   state
	skipped skipLog
	// isConnected is what OnConnected was told last. Run's goroutine uses it.
	isConnected bool
}

var _ model.Feed = (*Client)(nil)

// NewClient returns a client that Run starts. Errors are about target or options.
func NewClient(target string, options Options) (*Client, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	conn, err := dial(target, &options)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // it was for the error
	return &Client{options: options, target: target, state: newState(options.Limits, options.Empty.State("services", options.Logger))}, nil
}

// The first and the longest wait before a server is tried again. A third of each wait is random, so that the clients of
// a server do not come back all at once.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// minStream is the least time after which a server may end a stream for its age. A client that has a stream ended earlier
// without an error waits longer each time.
const minStream = 2 * time.Second

// Run follows the server until ctx ends, and then returns nil. It must not be called twice.
//
// While the client has no state yet, Run returns an error that wraps ErrRefused if the server answers that no later try
// can succeed: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED or UNIMPLEMENTED; and one that wraps ErrServiceProxyName if
// the server sends the Services of another proxy. A client that has a state keeps it: it logs the error and tries again, because
// what changed at the server may change back.
func (c *Client) Run(ctx context.Context) error {
	defer c.setConnected(false)
	waits := backoff.ExponentialBackOff{InitialInterval: minRetry, Multiplier: 2, MaxInterval: maxRetry}
	for ctx.Err() == nil {
		began := time.Now()
		good, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, io.EOF) && time.Since(began) < minStream {
			good = false
		}
		if good {
			waits.Reset()
		}
		// A server ends a stream for its age, so that clients spread over the servers. The next stream is part of that.
		planned := good && errors.Is(err, io.EOF)
		if !planned {
			c.setConnected(false)
		}
		wait := waits.NextBackOff()
		wait -= rand.N(wait / 3)
		logger := c.options.Logger.WithValues("target", c.target, "node", c.options.Node, "reason", reason(err), "retryIn", wait)
		fault := unmendable(err)
		switch {
		case planned:
			logger.V(2).Info("The node-local server ended the stream, following on")
		case fault == nil:
			logger.Info("No connection to the node-local server, keeping the last state")
		case c.state.empty():
			return fmt.Errorf("%w: node %q at %s: %w", fault, c.options.Node, c.target, err)
		default:
			logger.Error(fault, "Keeping the last state")
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// ErrRefused is returned, wrapped, if the server refuses the client for a reason that trying again cannot mend.
var ErrRefused = errors.New("the node-local server refuses this client")

// ErrServiceProxyName is returned, wrapped, if the server has another service-proxy-name than Options.ServiceProxyName.
var ErrServiceProxyName = errors.New("the node-local server serves another proxy")

// otherName says which names differ.
type otherName struct{ server, client string }

func (e otherName) Error() string {
	return fmt.Sprintf("the server's service-proxy-name is %.100q, the client's is %q", e.server, e.client)
}

// unmendable returns ErrRefused or ErrServiceProxyName for an error that trying again cannot mend, and nil for others.
func unmendable(err error) error {
	if errors.As(err, new(otherName)) {
		return ErrServiceProxyName
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return ErrRefused
	}
	return nil
}

// follow reads one stream to its end. good says that it carried a batch and followed the protocol to the end.
func (c *Client) follow(ctx context.Context) (good bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A new connection each time: one that could not connect answers a call at once with its last error while it tries again, after a
	// back-off of its own.
	conn, err := dial(c.target, &c.options)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := nodelocalv1.NewNodeLocalClient(conn).Watch(ctx, &nodelocalv1.WatchRequest{
		Node: c.options.Node, LastSeen: c.state.position(), ServiceKeys: protocol.EncodeKeys(c.options.ServiceKeys),
	})
	if err != nil {
		return false, err
	}
	batches := 0
	batch := protocol.Batch{Limits: c.options.Limits, OnSkip: c.skip}
	for {
		update, err := stream.Recv()
		if err != nil {
			return batches > 0, err
		}
		c.ignore(update)
		changes, sync, err := batch.Add(update)
		if err == nil && changes != nil {
			err = c.apply(changes, sync)
		}
		if err != nil {
			// Nothing of it was applied. A full state may be good.
			c.state.resetPosition()
			return false, err
		}
		if changes == nil {
			continue
		}
		if batches++; batches == 1 {
			c.connected(changes)
		}
		c.warn(sync.GetWarning())
	}
}

// apply applies a batch, unless it is for another proxy: that one's Services would replace all of this one's.
func (c *Client) apply(changes *model.Changes, sync *nodelocalv1.Sync) error {
	if name := sync.GetServiceProxyName(); name != c.options.ServiceProxyName {
		return otherName{server: name, client: c.options.ServiceProxyName}
	}
	c.leaveOut(changes)
	return c.state.apply(changes, sync)
}

// leaveOut removes from changes, which nobody else has yet, what the options ignore.
func (c *Client) leaveOut(changes *model.Changes) {
	if !c.options.IgnoreExternalIPs {
		return
	}
	for _, port := range changes.Ports {
		if port != nil {
			port.ExternalIPs = nil
		}
	}
}

// connected notes that the first batch of a stream has arrived.
func (c *Client) connected(changes *model.Changes) {
	if !c.isConnected {
		c.options.Logger.Info("Connected to the node-local server", "target", c.target, "node", c.options.Node, "full", changes.Full, "changedPorts", len(changes.Ports))
	}
	c.setConnected(true)
}

// setConnected calls OnConnected when that changes.
func (c *Client) setConnected(yes bool) {
	if c.isConnected != yes && c.options.OnConnected != nil {
		c.options.OnConnected(yes)
	}
	c.isConnected = yes
}

// reason is an error without the words that gRPC puts before it.
func reason(err error) string {
	if errors.Is(err, io.EOF) {
		return "the server ended the stream"
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return s.Code().String() + ": " + s.Message()
	}
	return err.Error()
}

// Dirty implements model.Feed.
func (c *Client) Dirty() <-chan struct{} { return c.state.wake }

// Take implements model.Feed. Times of events are those that the server sent; it sends none of events before it began, or
// before the client was sent the full state.
func (c *Client) Take() (*model.Changes, []time.Time) { return c.state.take() }

// Resync implements model.Feed.
func (c *Client) Resync() { c.state.resync() }
