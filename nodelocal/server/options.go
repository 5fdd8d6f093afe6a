package server

import (
	"cmp"
	"crypto/tls"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
)

// Options configures a Server. A number of 0 means the default.
type Options struct {
	// MaxStreams bounds the concurrent calls of all services, by default 5,000.
	MaxStreams int
	// MaxStreamsPerPeer bounds the concurrent calls of one peer, by default 1,100. A peer is a user of this machine on
	// a unix socket, and the nodes of a certificate over TCP; with AnyNode the certificate and the client's address.
	MaxStreamsPerPeer int
	// MaxConnections bounds the connections, by default 5,000. The server closes others once their peer is known.
	MaxConnections int
	// MaxConnectionsPerPeer bounds the connections of one peer, by default 1,100.
	MaxConnectionsPerPeer int
	// FirstCall bounds the time from a connection's acceptance to its first call, by default 10 s. Then the server
	// closes the connection.
	FirstCall time.Duration
	// MinInterval is the least time from one batch of a stream to the next, by default 50
	// ms. Concurrent changes are merged.
	MinInterval time.Duration
	// MaxAge is the age at which a stream ends without an error, by default 30 min and up to a tenth more. The client
	// reconnects, perhaps to another server, so that clients spread over the servers.
	MaxAge time.Duration
	// SendTimeout bounds the time in which a client receives one part of a batch, by default 30 s.
	SendTimeout time.Duration
	// LeastRate bounds the time for a whole batch: SendTimeout and a second for each LeastRate bytes, by default 512 KiB.
	LeastRate int64
	// BatchMemory is about the memory in bytes of the large batches under way to clients, by default 128 MiB. The
	// clients of one peer may use an eighth of it. Other batches wait. At least one batch is always under way.
	BatchMemory int64
	// BatchWait bounds the wait of a large batch for BatchMemory, by default 10 s. Then the call ends with UNAVAILABLE,
	// so that the client tries again, perhaps at another server.
	BatchWait time.Duration
	// TLS is the configuration for tcp://; it must request certificates from clients (nodelocal.TLSFiles).
	TLS *tls.Config
	// AnyNode lets a client with a certificate watch any node. By default a certificate must name the node:
	// system:node:NAME, as the kubelet's does, as its common name or one of its alternative names (DNS, URI).
	AnyNode bool
	// Logger receives refused calls and closed connections. The zero value logs nothing.
	Logger logr.Logger
	// Hooks report events for metrics.
	Hooks Hooks
}

// Hooks report events for metrics. Each may be nil. They must not block, and may be called concurrently.
type Hooks struct {
	// OnWatchers is called with the number of calls when it changes.
	OnWatchers func(n int)
	// OnBatch is called for each batch that gRPC has written. full says that it was the full state. lag is the time
	// since the first change in the batch reached the server, and 0 for the first batch of a stream.
	OnBatch func(full bool, bytes int, lag time.Duration)
	// OnRefused is called for each connection or call that is refused or ended by the
	// server, with one of the Refused constants.
	OnRefused func(reason string)
}

// The reasons of Hooks.OnRefused.
const (
	RefusedNode       = "node"       // the name is invalid, or the server does not serve the node
	RefusedPermission = "permission" // the client's certificate is for another node, or for none
	RefusedKeys       = "keys"       // invalid keys of labels and annotations
	RefusedStreams    = "streams"    // beyond a limit of calls
	RefusedBusy       = "busy"       // no memory for a full state in time
	RefusedStalled    = "stalled"    // the client did not read
	RefusedTLS        = "tls"        // the TLS handshake of a connection failed

	RefusedConnections = "connections" // beyond a limit of connections
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

// streamAge draws the age at which a stream ends, so that clients do not reconnect all at once.
func (o *Options) streamAge() time.Duration { return o.MaxAge + rand.N(o.MaxAge/10+1) }
