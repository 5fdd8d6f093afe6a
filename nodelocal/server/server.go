// Package server serves the node-local API: each backend that connects receives the state of its
// node's Services, and then the changes. The state comes from a [tracker.Tracker]. With EveryNode
// in its Options, one server serves all nodes of a cluster.
//
// A stream has no queue of batches. When gRPC has written a batch, the server computes the difference to the present.
// So a slow client costs only gRPC's window more memory than a fast one, 64 KiB.
package server

import (
	"context"
	"crypto/rand"
	"net"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/nftproxy/nftproxy/internal/protocol"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
	"github.com/nftproxy/nftproxy/tracker"
)

const (
	// maxRequest bounds a request, in bytes.
	maxRequest = 16 << 10
	// maxHeaders bounds the headers of a call, in bytes.
	maxHeaders = 8 << 10
	// streamsPerConnection bounds the calls on one connection; more wait in the client.
	streamsPerConnection = 100
	// idleTimeout ends a connection without calls.
	idleTimeout = 5 * time.Minute
	// buffers is the size of the buffers of a connection, in bytes. It is small, because most connections are idle.
	buffers = 4 << 10
	// stopGrace bounds the time in which calls end when the server stops.
	stopGrace = 2 * time.Second
)

// Server serves the node-local API.
type Server struct {
	nodelocalv1.UnimplementedNodeLocalServer

	tracker   *tracker.Tracker
	options   Options
	instance  string
	admission *admission
	encoded   encodings
	// unknown holds the logged nodes without a Node object.
	unknown protocol.Seen
	// stopping is closed to end all calls.
	stopping chan struct{}
	// refused limits the log lines of refused connections.
	refused rate.Sometimes
}

// New returns a server of the tracker's state. Each server is a new instance: clients of an earlier server get the full
// state.
func New(t *tracker.Tracker, options Options) *Server {
	options.setDefaults()
	return &Server{
		tracker:   t,
		options:   options,
		instance:  rand.Text(),
		admission: newAdmission(&options),
		stopping:  make(chan struct{}),
		refused:   rate.Sometimes{First: 10, Interval: 10 * time.Second},
	}
}

// Serve answers on the listener, which comes from Listen. When ctx ends, it ends all calls, closes the listener and
// returns nil. It must not be called twice.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := s.newGRPC(ctx)
	go s.logWaiting(ctx)
	if unix, ok := listener.(*socket); ok {
		go unix.keep(ctx, s.options.Logger)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(bounded{listener, s}) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	close(s.stopping)
	force := time.AfterFunc(stopGrace, server.Stop)
	defer force.Stop()
	server.GracefulStop()
	<-ended
	return nil
}

func (s *Server) newGRPC(ctx context.Context) *grpc.Server {
	var transport credentials.TransportCredentials = insecure.NewCredentials()
	if s.options.TLS != nil {
		transport = credentials.NewTLS(s.options.TLS)
	}
	server := grpc.NewServer(
		grpc.Creds(namedPeers{transport, s}),
		grpc.InTapHandle(s.admit),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.ReadBufferSize(buffers),
		grpc.WriteBufferSize(buffers),
		// Pings find a peer that is gone silently. A peer that pings too often is disconnected. After the end of a
		// stream for its age the client opens a new connection. Later streams of the old connection have time to end.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTimeout, Time: 30 * time.Second, Timeout: 10 * time.Second,
			MaxConnectionAge: s.options.MaxAge, MaxConnectionAgeGrace: 2 * s.options.MaxAge,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	nodelocalv1.RegisterNodeLocalServer(server, s)
	healthv1.RegisterHealthServer(server, s.newHealth(ctx))
	reflection.Register(server)
	return server
}

// logWaiting logs the missing resources until the tracker is synced.
func (s *Server) logWaiting(ctx context.Context) {
	waits := backoff.ExponentialBackOff{InitialInterval: 5 * time.Second, Multiplier: 2, MaxInterval: 5 * time.Minute}
	for wait := waits.NextBackOff(); ; {
		select {
		case <-s.tracker.Ready():
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = waits.NextBackOff()
			s.options.Logger.Info("Not serving the node-local API yet, clients are told to try again",
				"waitingFor", s.tracker.WaitingFor(), "nextLogIn", wait)
		}
	}
}

// newHealth answers grpc.health.v1: not serving before the tracker is synced.
func (s *Server) newHealth(ctx context.Context) *health.Server {
	h := health.NewServer()
	set := func(status healthv1.HealthCheckResponse_ServingStatus) {
		h.SetServingStatus("", status)
		h.SetServingStatus(nodelocalv1.NodeLocal_ServiceDesc.ServiceName, status)
	}
	set(healthv1.HealthCheckResponse_NOT_SERVING)
	go func() {
		select {
		case <-s.tracker.Ready():
			set(healthv1.HealthCheckResponse_SERVING)
		case <-ctx.Done():
		}
		<-ctx.Done()
		h.Shutdown()
	}()
	return h
}
