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
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Run follows the server at target, and calls backend with the changes of the node. When ctx ends, it returns nil. It
// returns an error for an invalid target or invalid options, and the errors of [Client.Run]. After other faults of the
// server, and after a failed Sync, it tries again. target is unix:///PATH or tcp://HOST:PORT.
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
	state   *state
	// logged holds the texts of logOnce.
	logged protocol.Seen
	// isConnected is the last argument of OnConnected. Run's goroutine uses it.
	isConnected bool
}

// NewClient returns a client that Run starts. Errors are about target or options.
func NewClient(target string, options Options) (*Client, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	conn, err := dial(target, &options)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // only the error is of interest
	return &Client{options: options, target: target, state: newState(&options)}, nil
}

// Run follows the server until ctx ends, and then returns nil. It must not be called twice.
//
// While the client has no state, Run returns an error that wraps ErrRefused if the server answers INVALID_ARGUMENT,
// UNAUTHENTICATED, PERMISSION_DENIED or UNIMPLEMENTED, because no later try can succeed; and an error that wraps
// ErrServiceProxyName if the server sends the Services of another proxy. A client with a state keeps its state, logs
// the error and tries again, because the server may change back.
func (c *Client) Run(ctx context.Context) error {
	defer c.setConnected(false)
	waits := backoff.ExponentialBackOff{InitialInterval: 100 * time.Millisecond, Multiplier: 2, MaxInterval: 10 * time.Second}
	for {
		good, err := c.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if good {
			waits.Reset()
		}
		wait := waits.NextBackOff()
		wait -= rand.N(wait / 3) // so that clients do not reconnect all at once
		if err := c.ended(err, good && errors.Is(err, io.EOF), wait); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// ended logs the end of a stream. It returns a permanent error if the client has no state. After an end for the
// stream's age, by which clients spread over the servers, the client counts as connected.
func (c *Client) ended(err error, planned bool, wait time.Duration) error {
	logger := c.options.Logger.WithValues("target", c.target, "node", c.options.Node, "reason", reason(err), "retryIn", wait)
	if planned {
		logger.V(2).Info("The node-local server ended the stream, following on")
		return nil
	}
	c.setConnected(false)
	fault := unmendable(err)
	switch {
	case fault == nil:
		logger.Info("No connection to the node-local server, keeping the last state")
	case c.state.empty():
		return fmt.Errorf("%w: node %q at %s: %w", fault, c.options.Node, c.target, err)
	default:
		logger.Error(fault, "Keeping the last state")
	}
	return nil
}

// ErrRefused is returned, wrapped, if the server refuses the client for good.
var ErrRefused = errors.New("the node-local server refuses this client")

// ErrServiceProxyName is returned, wrapped, if the server has another service-proxy-name than Options.ServiceProxyName.
var ErrServiceProxyName = errors.New("the node-local server serves another proxy")

// errOtherName is an error with both names.
type errOtherName struct{ error }

// unmendable returns ErrRefused or ErrServiceProxyName for a permanent error, else nil.
func unmendable(err error) error {
	if errors.As(err, new(errOtherName)) {
		return ErrServiceProxyName
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return ErrRefused
	}
	return nil
}

// follow reads one stream to its end. good says that the stream had a batch, followed the protocol, and did not end
// early.
func (c *Client) follow(ctx context.Context) (good bool, err error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A new connection each time: a failed connection has a back-off of its own, during which it answers calls with its
	// last error.
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
	batch := protocol.Batch{Limits: c.options.Limits, OnSkip: c.skip}
	for {
		update, err := stream.Recv()
		if err != nil {
			early := errors.Is(err, io.EOF) && time.Since(began) < 2*time.Second
			return good && !early, err
		}
		c.ignore(update)
		changes, sync, err := batch.Add(update)
		if changes != nil {
			err = c.apply(changes, sync)
			good = true
		}
		if err != nil {
			// No part was applied. A full state may be good.
			c.state.resetPosition()
			return false, err
		}
	}
}

// apply applies a batch, unless it is for another proxy: the batch would replace all Services of this one.
func (c *Client) apply(changes *model.Changes, sync *nodelocalv1.Sync) error {
	if name := sync.GetServiceProxyName(); name != c.options.ServiceProxyName {
		return errOtherName{
			fmt.Errorf("the server's service-proxy-name is %.100q, the client's is %q", name, c.options.ServiceProxyName),
		}
	}
	for _, port := range changes.Ports {
		if port != nil && c.options.IgnoreExternalIPs {
			port.ExternalIPs = nil
		}
	}
	if err := c.state.apply(changes, sync); err != nil {
		return err
	}
	if !c.isConnected {
		c.options.Logger.Info("Connected to the node-local server", "target", c.target, "node", c.options.Node, "full", changes.Full, "changedPorts", len(changes.Ports))
	}
	c.setConnected(true)
	if text := sync.GetWarning(); text != "" {
		text = text[:min(len(text), maxWarning)]
		c.logOnce("Warning of the node-local server", "warning", text)
	}
	return nil
}

// setConnected calls OnConnected with each change.
func (c *Client) setConnected(yes bool) {
	if c.isConnected != yes && c.options.OnConnected != nil {
		c.options.OnConnected(yes)
	}
	c.isConnected = yes
}

// reason returns an error without gRPC's prefix.
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

// Take implements model.Feed. The server sends no times of events before its start, or before the client received the
// full state.
func (c *Client) Take() (*model.Changes, []time.Time) { return c.state.take() }

// Resync implements model.Feed.
func (c *Client) Resync() { c.state.resync() }

// maxWarning bounds a logged warning, in bytes.
const maxWarning = 1000

// logOnce logs a message with a text once.
func (c *Client) logOnce(message, key, text string) {
	if c.logged.First(message + text) {
		c.options.Logger.Info(message, "target", c.target, "node", c.options.Node, key, text)
	}
}

// skip reports an omitted port.
func (c *Client) skip(err error) {
	if c.options.OnSkip != nil {
		c.options.OnSkip(err)
	}
	c.logOnce("Leaving out a port of the node-local server, this program is too old for it", "reason", err.Error())
}

// ignore logs the unknown kinds of changes in an update.
func (c *Client) ignore(update *nodelocalv1.Update) {
	for rest := update.ProtoReflect().GetUnknown(); len(rest) > 0; {
		number, _, length := protowire.ConsumeField(rest)
		if length < 0 {
			return // the decoder has checked it
		}
		rest = rest[length:]
		c.logOnce("Ignoring a kind of change of the node-local server, this program is too old for it", "reason", fmt.Sprintf("field %d of Update", number))
	}
}
