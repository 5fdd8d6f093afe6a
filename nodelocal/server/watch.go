package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/tracker"
)

var (
	errStopping = status.Error(codes.Unavailable, "the server stops; try again")
	errBusy     = status.Error(codes.Unavailable, "the server is sending full states to others; try again")
	errStalled  = status.Error(codes.ResourceExhausted, "the client did not read, or too slowly")
)

// Watch implements nodelocalv1.NodeLocalServer.
func (s *Server) Watch(request *nodelocalv1.WatchRequest, out grpc.ServerStreamingServer[nodelocalv1.Update]) error {
	return s.call(request, request.GetLastSeen(), out, (*stream).follow)
}

// Get implements nodelocalv1.NodeLocalServer.
func (s *Server) Get(request *nodelocalv1.GetRequest, out grpc.ServerStreamingServer[nodelocalv1.Update]) error {
	return s.call(request, nil, out, func(st *stream) error { return st.next(time.Time{}) })
}

// instanceFor returns the instance in the positions of a stream.
func (s *Server) instanceFor(keys model.ServiceKeys) string {
	if keys.Empty() {
		return s.instance
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", keys))
	return s.instance + "-" + hex.EncodeToString(sum[:8])
}

// request is a WatchRequest or a GetRequest.
type request interface {
	GetNode() string
	GetServiceKeys() *nodelocalv1.ServiceKeys
}

// call runs one call in a goroutine of its own, so that it can end the stream while the goroutine waits for the client
// to read.
func (s *Server) call(asked request, seen *nodelocalv1.Position, out grpc.ServerStream, run func(*stream) error) error {
	peer := identify(out.Context())
	node := asked.GetNode()
	keys, reason, err := s.check(asked, peer)
	if err != nil {
		s.options.Hooks.OnRefused(reason)
		return err
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	st := &stream{
		ctx: ctx, server: s, node: node, conn: peer.conn, keys: keys, instance: s.instanceFor(keys), out: out,
	}
	st.watchdog = time.AfterFunc(s.options.SendTimeout, func() { cancel(errStalled) })
	st.watchdog.Stop()
	ended := make(chan error, 1)
	go func() {
		// A revision of another instance, or of a stream with other keys, is of no use for this stream.
		var revision uint64
		if seen.GetInstance() == st.instance {
			revision = seen.GetRevision()
		}
		st.view = s.tracker.View(node, revision)
		st.view.Select(keys)
		err := run(st)
		st.view.Close()
		ended <- err
	}()
	select {
	case err = <-ended:
	case <-s.stopping:
		err = errStopping
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		s.options.Hooks.OnRefused(RefusedStalled)
		s.options.Logger.Info("Closing the connection of a client that reads too slowly or not at all",
			"node", node, "peer", peer.conn.name, "timeout", s.options.SendTimeout)
		_ = peer.conn.Close() // the end of the stream alone would leave unread data in the connection's buffers
		return errStalled
	}
	return err
}

// check returns the keys in a request, or an error and its reason if the request is refused.
func (s *Server) check(asked request, peer identity) (keys model.ServiceKeys, reason string, err error) {
	node := asked.GetNode()
	if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
		return keys, RefusedNode, status.Errorf(codes.InvalidArgument, "node %.300q: %s", node, problems[0])
	}
	if !s.tracker.Serves(node) {
		return keys, RefusedNode, status.Errorf(codes.NotFound,
			"node %q is not served here, but only the node that this server runs on", node)
	}
	if err := s.authorizeNode(peer, node); err != nil {
		return keys, RefusedPermission, err
	}
	keys, err = protocol.DecodeKeys(asked.GetServiceKeys())
	for _, key := range slices.Concat(keys.Labels, keys.Annotations) {
		if problems := validation.IsQualifiedName(key); err == nil && len(problems) > 0 {
			err = fmt.Errorf("%q: %s", key, problems[0])
		}
	}
	if err != nil {
		return keys, RefusedKeys, status.Errorf(codes.InvalidArgument, "service_keys: %s", err)
	}
	return keys, "", nil
}

// stream is one call.
type stream struct {
	// ctx ends with the call, with the cause errStalled if the client does not read.
	ctx    context.Context
	server *Server
	node   string
	conn   *conn
	keys   model.ServiceKeys
	// instance is the server's instance, extended for streams with keys.
	instance string
	view     *tracker.View
	out      grpc.ServerStream
	// watchdog ends ctx when a part, or the batch so far, takes too long.
	watchdog *time.Timer
	// sent is the revision of the last batch, and last its time.
	sent uint64
	last time.Time
}

// maxBehind is the number of revisions without a change for the node after which the server sends the position
// anyway, so that the client can resume after it.
const maxBehind = 1000

// follow sends changes until the client goes, or the stream reaches its maximal age.
func (st *stream) follow() error {
	var woken time.Time
	old := time.After(st.server.options.streamAge())
	for {
		if err := st.next(woken); err != nil {
			return err
		}
		select {
		case <-st.view.Dirty():
			woken = time.Now()
		case <-old:
			return nil
		case <-st.ctx.Done():
			return st.ctx.Err()
		}
		select {
		case <-time.After(st.server.options.MinInterval - time.Since(st.last)):
		case <-st.ctx.Done():
			return st.ctx.Err()
		}
	}
}

// next sends the changes since the last batch, if they are worth a batch. woken is the time at which they reached the
// server; zero skips the lag metric.
func (st *stream) next(woken time.Time) error {
	free, err := st.server.admission.reserve(st.ctx, st.conn.load, st.view.Behind())
	if err != nil {
		if errors.Is(err, errBusy) {
			st.server.options.Hooks.OnRefused(RefusedBusy)
		}
		return err
	}
	defer free()
	changes, triggers, revision, synced := st.view.TakeRevision()
	if !synced {
		return status.Errorf(codes.Unavailable, "the server does not know all Services and EndpointSlices yet: it waits for %s; try again", st.server.tracker.WaitingFor())
	}
	if first := st.last.IsZero(); !first && changes == nil && revision-st.sent <= maxBehind {
		return nil
	}
	end := protocol.EncodeSync(&nodelocalv1.Position{Instance: st.instance, Revision: revision}, triggers)
	end.Warning, end.ServiceProxyName = st.warning(), st.server.tracker.ServiceProxyName()
	bytes, err := st.send(changes, end)
	if err != nil {
		return err
	}
	st.sent, st.last = revision, time.Now()
	var lag time.Duration
	if !woken.IsZero() {
		lag = st.last.Sub(woken)
	}
	st.server.options.Hooks.OnBatch(changes != nil && changes.Full, bytes, lag)
	return nil
}

// send sends one batch, and returns its length. Each part has SendTimeout, and the batch so far
// SendTimeout and a second for each LeastRate bytes.
func (st *stream) send(changes *model.Changes, end *nodelocalv1.Sync) (bytes int, err error) {
	s := st.server
	encode := func(port *model.ServicePort) []protocol.Field {
		return protocol.AddKeys(s.encoded.fields(port), port, st.keys)
	}
	begin := time.Now()
	for data := range protocol.Parts(changes, end, encode) {
		bytes += len(data)
		deadline := begin.Add(s.options.SendTimeout + time.Duration(float64(bytes)/float64(s.options.LeastRate)*float64(time.Second)))
		if err := st.sendPart(data, min(s.options.SendTimeout, time.Until(deadline))); err != nil {
			return bytes, err
		}
	}
	return bytes, nil
}

// warning returns a text for a client whose node has no Node object. The server logs it once for each node.
func (st *stream) warning() string {
	if st.view.NodeKnown() {
		return ""
	}
	if st.server.unknown.First(st.node) {
		st.server.options.Logger.Info("A client watches a node without a Node object; perhaps its name is wrong",
			"node", st.node, "peer", st.conn.name)
	}
	return fmt.Sprintf("the server knows no Node object %q: perhaps the name is wrong", st.node)
}

// sendPart sends a part, and waits until gRPC has written it to the connection, so that a stream never has two parts in
// memory. After the timeout it closes the connection.
func (st *stream) sendPart(data protocol.Update, timeout time.Duration) error {
	st.watchdog.Reset(timeout)
	defer st.watchdog.Stop()
	p := newPart(data)
	if err := st.out.SendMsg(p); err != nil {
		return err
	}
	select {
	case <-p.written:
		return nil
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}
