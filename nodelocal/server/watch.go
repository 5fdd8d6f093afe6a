package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	errStreams  = status.Error(codes.ResourceExhausted, "too many calls, of all clients or of this one; try again later")
	errBusy     = status.Error(codes.Unavailable, "the server is sending full states to others; try again")
	errStalled  = status.Error(codes.ResourceExhausted, "the client did not read, or too slowly")
)

// Watch implements nodelocalv1.NodeLocalServer.
func (s *Server) Watch(request *nodelocalv1.WatchRequest, out grpc.ServerStreamingServer[nodelocalv1.Update]) error {
	return s.call(request, out, func(st *stream) error {
		st.view = s.tracker.View(st.node, st.resumable(request.GetLastSeen()))
		defer st.view.Close()
		st.view.Select(st.keys)
		return st.follow()
	})
}

// Get implements nodelocalv1.NodeLocalServer.
func (s *Server) Get(request *nodelocalv1.GetRequest, out grpc.ServerStreamingServer[nodelocalv1.Update]) error {
	return s.call(request, out, func(st *stream) error {
		st.view = s.tracker.View(st.node, 0)
		defer st.view.Close()
		st.view.Select(st.keys)
		return st.next(time.Time{})
	})
}

// errNotSynced says what the tracker waits for.
func (s *Server) errNotSynced() error {
	return status.Errorf(codes.Unavailable, "the server does not know all Services and EndpointSlices yet: it waits for %s; try again", s.tracker.WaitingFor())
}

// resumable returns the revision that a client has seen, 0 if it is none of this server's, or of a stream with other
// keys: that lacked what the client asks for now.
func (st *stream) resumable(seen *nodelocalv1.Position) uint64 {
	if seen.GetInstance() != st.instance {
		return 0
	}
	return seen.GetRevision()
}

// instanceFor returns the instance of a stream in its positions.
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

// call runs one call, on a goroutine of its own: this one can return, and so end the stream, while that one waits for the client to read.
func (s *Server) call(asked request, out grpc.ServerStream, run func(*stream) error) error {
	peer := identify(out.Context())
	node := asked.GetNode()
	keys, err := s.check(asked, peer)
	if err != nil {
		return err
	}
	load := s.streams.enter(peer.name)
	if load == nil {
		s.options.Hooks.OnRefused(RefusedStreams)
		return errStreams
	}
	st := &stream{server: s, node: node, keys: keys, instance: s.instanceFor(keys), load: load, out: out, stalled: make(chan struct{})}
	st.watchdog = time.AfterFunc(s.options.SendTimeout, func() { st.once.Do(func() { close(st.stalled) }) })
	st.watchdog.Stop()
	ended := make(chan error, 1)
	go func() {
		defer s.streams.leave(peer.name)
		ended <- run(st)
	}()
	select {
	case err := <-ended:
		return err
	case <-st.stalled:
		s.options.Hooks.OnRefused(RefusedStalled)
		s.options.Logger.Info("Closing the connection of a client that reads too slowly or not at all", "node", node, "peer", peer.name, "timeout", s.options.SendTimeout)
		// Ending the stream alone would leave what it has not read in the connection's buffers.
		if peer.conn != nil {
			_ = peer.conn.Close()
		}
		return errStalled
	case <-s.stopping:
		return errStopping
	}
}

// check returns the keys that a request asks for, or why it is refused.
func (s *Server) check(asked request, peer identity) (model.ServiceKeys, error) {
	if err := s.checkNode(asked.GetNode()); err != nil {
		s.options.Hooks.OnRefused(RefusedNode)
		return model.ServiceKeys{}, err
	}
	if err := s.authorize(asked.GetNode(), peer); err != nil {
		s.options.Hooks.OnRefused(RefusedPermission)
		return model.ServiceKeys{}, err
	}
	keys, err := protocol.DecodeKeys(asked.GetServiceKeys())
	for _, key := range slices.Concat(keys.Labels, keys.Annotations) {
		if problems := validation.IsQualifiedName(key); err == nil && len(problems) > 0 {
			err = fmt.Errorf("%q: %s", key, problems[0])
		}
	}
	if err != nil {
		s.options.Hooks.OnRefused(RefusedKeys)
		return model.ServiceKeys{}, status.Errorf(codes.InvalidArgument, "service_keys: %s", err)
	}
	return keys, nil
}

func (s *Server) checkNode(node string) error {
	if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
		return status.Errorf(codes.InvalidArgument, "node %.300q: %s", node, problems[0])
	}
	if !s.tracker.Serves(node) {
		return status.Errorf(codes.NotFound, "node %q is not served here, but only the node that this server runs on", node)
	}
	return nil
}

// stream is what is sent to one client.
type stream struct {
	server *Server
	node   string
	load   *peerLoad
	keys   model.ServiceKeys
	// instance is the server's, and tells streams with other keys apart.
	instance string
	view     *tracker.View
	out      grpc.ServerStream
	// watchdog closes stalled when a part, or the batch so far, has not been taken in time.
	watchdog *time.Timer
	once     sync.Once
	stalled  chan struct{}
	// sent is the revision that the client was told last, last when that was.
	sent uint64
	last time.Time
}

// maxBehind is after how many revisions without a change for its node a client is told the revision all the same, so that it can resume after it.
const maxBehind = 1000

// follow sends what changes until the client goes, or the stream is so old that the client should look for a server anew.
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
		case <-st.out.Context().Done():
			return st.out.Context().Err()
		case <-st.server.stopping:
			return errStopping
		}
		if err := st.rest(); err != nil {
			return err
		}
	}
}

// next sends what the client does not have yet, if that is worth a batch. woken is as in send.
func (st *stream) next(woken time.Time) error {
	free, err := st.server.streams.reserve(st.out.Context(), st.load, st.view.Behind())
	if err != nil {
		if errors.Is(err, errBusy) {
			st.server.options.Hooks.OnRefused(RefusedBusy)
		}
		return err
	}
	defer free()
	changes, triggers, revision, synced := st.view.TakeRevision()
	if !synced {
		return st.server.errNotSynced()
	}
	if first := st.last.IsZero(); !first && changes == nil && revision-st.sent <= maxBehind {
		return nil
	}
	return st.send(changes, triggers, revision, woken)
}

// rest waits until the next batch may be sent.
func (st *stream) rest() error {
	wait := st.server.options.MinInterval - time.Since(st.last)
	if wait <= 0 {
		return nil
	}
	select {
	case <-time.After(wait):
		return nil
	case <-st.out.Context().Done():
		return st.out.Context().Err()
	case <-st.server.stopping:
		return errStopping
	}
}

// send sends one batch, to which events at the times of triggers led. woken is when the server learnt of it, the zero value if that does not count.
func (st *stream) send(changes *model.Changes, triggers []time.Time, revision uint64, woken time.Time) error {
	s := st.server
	full := changes != nil && changes.Full
	var err error
	bytes := 0
	end := protocol.EncodeSync(&nodelocalv1.Position{Instance: st.instance, Revision: revision}, triggers)
	end.Warning, end.ServiceProxyName = st.warning(), s.tracker.ServiceProxyName()
	encode := func(port *model.ServicePort) []protocol.Field {
		return protocol.AddKeys(s.encoded.of(port), port, st.keys)
	}
	begin := time.Now()
	for data := range protocol.Parts(changes, end, encode) {
		bytes += len(data)
		deadline := begin.Add(s.options.SendTimeout + time.Duration(float64(bytes)/float64(s.options.LeastRate)*float64(time.Second)))
		if err = st.sendPart(data, min(s.options.SendTimeout, time.Until(deadline))); err != nil {
			return err
		}
	}
	st.sent, st.last = revision, time.Now()
	var lag time.Duration
	if !woken.IsZero() {
		lag = st.last.Sub(woken)
	}
	s.options.Hooks.OnBatch(full, bytes, lag)
	return nil
}

// warning returns what the client should know of how it is set up. It is logged once for each node.
func (st *stream) warning() string {
	if st.view.NodeKnown() {
		return ""
	}
	if st.server.unknown.first(st.node) {
		st.server.options.Logger.Info("A client watches a node without a Node object; perhaps its name is wrong", "node", st.node, "peer", identify(st.out.Context()).name)
	}
	return fmt.Sprintf("the server knows no Node object %q: perhaps the name is wrong", st.node)
}

// sendPart sends a part, and waits until it is on its way to the client, so that a stream never has two of them in memory. The
// connection is closed if that takes longer than timeout.
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
	case <-st.out.Context().Done():
		return st.out.Context().Err()
	}
}
