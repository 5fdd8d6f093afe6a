package apiserver

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/connrotation"

	"github.com/nftproxy/nftproxy/tracker"
)

// Source watches an API server. It implements tracker.Source.
type Source struct {
	config      Config
	collections Collections
	connections *connrotation.Dialer
	timing      timing
}

// timing says how long to wait for each resource.
type timing struct {
	// node and cidrs limit the time for which Synced waits for what the proxy can begin without, once it
	// has what it cannot. Later objects are published later.
	node, cidrs time.Duration
	// silence is the time without an answer after which the log says that it is missing.
	silence time.Duration
	// refusal is the least time between requests for a resource that the server refused; the most is twice that.
	refusal time.Duration
}

var defaultTiming = timing{
	// Spares a start that endpoints are chosen twice, without and with the Node's zone.
	node: 10 * time.Second,
	// Spares a start that the rules for ServiceCIDRs go and come back.
	cidrs:   500 * time.Millisecond,
	silence: 10 * time.Second,
	// Servers gain resources by being upgraded and permissions by being granted, so a resource is
	// asked for again, but rarely: every node of a cluster does.
	refusal: 10 * time.Minute,
}

var _ tracker.Source = (*Source)(nil)

// New returns a Source. It does not connect yet, so it succeeds while the API server is away. Errors are about config
// and about the kubeconfig, whose path they name.
func New(config Config) (*Source, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	collections, connections, err := connect(config)
	if err != nil {
		return nil, err
	}
	return &Source{config: config, collections: collections, connections: connections, timing: defaultTiming}, nil
}

// Run watches until ctx ends, and then returns nil once nothing of it runs any more.
//
// Sink.Synced is called after Services and EndpointSlices have been listed, believed (Config.Guard)
// and published, however long that takes. The list of this node's Node may take 10 s more, that of ServiceCIDRs half a second
// and nothing once it has failed.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	// Closing idle connections would not do: one whose watch was ended just now does not count as idle yet.
	defer s.connections.CloseAll()
	var controllers sync.WaitGroup
	defer controllers.Wait()
	defer cancel()

	feeds := s.feeds(ctx, sink)
	for _, f := range feeds {
		f.start(ctx, &controllers)
	}
	for _, f := range feeds {
		f.wait(ctx)
	}
	if ctx.Err() == nil {
		sink.Synced()
	}
	<-ctx.Done()
	return nil
}
