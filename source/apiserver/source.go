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
	// node and cidrs bound the wait of Synced for the optional resources, after the required ones. Later objects are
	// published later.
	node, cidrs time.Duration
	// silence is the time without an answer after which the log says so.
	silence time.Duration
	// refusal is the least time between requests for a resource that the server refused; the most is twice that.
	refusal time.Duration
}

var defaultTiming = timing{
	// Otherwise a start would select endpoints twice, without and with the Node's zone.
	node: 10 * time.Second,
	// Otherwise a start would delete the rules for ServiceCIDRs and add them again.
	cidrs:   500 * time.Millisecond,
	silence: 10 * time.Second,
	// Servers gain resources by upgrades and permissions by grants, so the source requests a refused resource again,
	// but rarely: every node of a cluster does.
	refusal: 10 * time.Minute,
}

var _ tracker.Source = (*Source)(nil)

// New returns a Source. It does not connect yet, so it succeeds while the API server is away. Errors are about config,
// or name the path of a wrong kubeconfig.
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

// Run watches until ctx ends, and returns nil when all its goroutines have ended.
//
// It calls Sink.Synced after Services and EndpointSlices have been listed, believed (Config.Guard) and published,
// without a bound. Then it waits for this node's Node for up to 10 s, and for ServiceCIDRs for up to half a second or
// their first failure.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	// Closing idle connections would not do: a connection whose watch has just ended does not count as idle yet.
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
