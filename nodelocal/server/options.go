package server

import (
	"cmp"
	"crypto/tls"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
)

// Options configures a Server. The zero value has the defaults that the fields name. A number that
// is not set (0) means its default.
type Options struct {
	// MaxStreams bounds the calls at a time, of all services, by default 5,000.
	MaxStreams int
	// MaxStreamsPerPeer bounds those of one peer, by default 1,100. A peer is a user of this machine on a unix socket, and
	// over TCP the nodes that a certificate is for; with AnyNode the certificate and the address of the client.
	MaxStreamsPerPeer int
	// MaxConnections bounds the connections, by default 5,000. More are closed once their peer is known.
	MaxConnections int
	// MaxConnectionsPerPeer bounds those of one peer, by default 1,100.
	MaxConnectionsPerPeer int
	// FirstCall bounds the time from when a connection is accepted to its first call, by default 10 s. Then it is closed.
	FirstCall time.Duration
	// MinInterval is the least time from one batch of a stream to the next, by default 50
	// ms. Concurrent changes are merged.
	MinInterval time.Duration
	// MaxAge is the age at which a stream ends without an error, by default 30 min and up to a tenth more. The client
	// comes back, perhaps to another server, so that clients spread over the servers.
	MaxAge time.Duration
	// SendTimeout bounds the time in which a client receives one part of a batch, by default 30 s.
	SendTimeout time.Duration
	// LeastRate bounds the time for a whole batch: SendTimeout and a second for each LeastRate bytes, by default 512 KiB.
	LeastRate int64
	// BatchMemory is about the memory in bytes of the large batches under way to clients, by default 128 MiB. The clients
	// of one peer may use an eighth of it. The rest wait. At least one batch is always under way.
	BatchMemory int64
	// BatchWait bounds the time that a large batch waits for that memory, by default 10 s. Then the call ends with
	// UNAVAILABLE, so that the client tries again, perhaps at another server.
	BatchWait time.Duration
	// TLS is the configuration for tcp://; it must ask clients for certificates (nodelocal.TLSFiles).
	TLS *tls.Config
	// AnyNode lets a client with a certificate watch any node. By default a certificate must name the node:
	// system:node:NAME, as the kubelet's does, as its common name or one of its alternative names (DNS, URI).
	AnyNode bool
	// Logger receives refused calls and closed connections. The zero value logs nothing.
	Logger logr.Logger
	// Hooks are called for metrics.
	Hooks Hooks
}

// Hooks report events that metrics count. Each may be nil. They must not block, and may be called
// from several goroutines at a time.
type Hooks struct {
	// OnWatchers is called with the number of calls when it changes.
	OnWatchers func(n int)
	// OnBatch is called for each batch that gRPC has written. full says that it was the full state. lag is the time since
	// the server learnt of the first change in it, and 0 for the first batch of a stream.
	OnBatch func(full bool, bytes int, lag time.Duration)
	// OnRefused is called for each connection or call that is refused or ended by the
	// server, with one of the Refused constants.
	OnRefused func(reason string)
}

// The reasons of Hooks.OnRefused.
const (
	RefusedNode       = "node"       // the name is invalid, or the server does not serve the node
	RefusedPermission = "permission" // the client's certificate is for another node, or for none
	RefusedKeys       = "keys"       // labels and annotations that cannot be asked for
	RefusedStreams    = "streams"    // there are too many
	RefusedBusy       = "busy"       // the memory for full states was taken for too long
	RefusedStalled    = "stalled"    // the client did not read
	RefusedTLS        = "tls"        // the TLS handshake of a connection failed

	RefusedConnections = "connections" // there are too many
	RefusedSilent      = "silent"      // a connection made no call in time
)

// Refused lists the reasons.
var Refused = []string{
	RefusedNode, RefusedPermission, RefusedKeys, RefusedStreams, RefusedBusy, RefusedStalled, RefusedTLS, RefusedConnections, RefusedSilent,
}

func (o *Options) setDefaults() {
	o.MaxStreams = cmp.Or(o.MaxStreams, 5000)
	o.MaxStreamsPerPeer = cmp.Or(o.MaxStreamsPerPeer, 1100)
	o.MaxConnections = cmp.Or(o.MaxConnections, 5000)
	o.MaxConnectionsPerPeer = cmp.Or(o.MaxConnectionsPerPeer, 1100)
	o.FirstCall = cmp.Or(o.FirstCall, 10*time.Second)
	o.MinInterval = cmp.Or(o.MinInterval, 50*time.Millisecond)
	o.MaxAge = cmp.Or(o.MaxAge, 30*time.Minute)
	o.SendTimeout = cmp.Or(o.SendTimeout, 30*time.Second)
	o.LeastRate = cmp.Or(o.LeastRate, 512<<10)
	o.BatchMemory = cmp.Or(o.BatchMemory, 128<<20)
	o.BatchWait = cmp.Or(o.BatchWait, 10*time.Second)
	if o.Hooks.OnWatchers == nil {
		o.Hooks.OnWatchers = func(int) {}
	}
	if o.Hooks.OnBatch == nil {
		o.Hooks.OnBatch = func(bool, int, time.Duration) {}
	}
	if o.Hooks.OnRefused == nil {
		o.Hooks.OnRefused = func(string) {}
	}
}

// streamAge draws the age at which a stream ends, so that the clients of a server do not come back all at once.
func (o *Options) streamAge() time.Duration { return o.MaxAge + rand.N(o.MaxAge/10+1) }
