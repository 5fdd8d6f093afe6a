package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"

	"github.com/nftproxy/nftproxy/tracker"
)

// Source watches an API server. It implements tracker.Source.
type Source struct {
	config       Config
	client       kubernetes.Interface
	connections  *connrotation.Dialer
	refusalPause time.Duration
}

var _ tracker.Source = (*Source)(nil)

// New returns a Source. It does not connect yet, so it succeeds while the API server is away.
//
// The error names what is wrong and, if that is a kubeconfig, the file: it cannot be read or
// parsed, its current context or what that refers to is missing, a certificate cannot be loaded.
// An empty NodeName and a ServiceProxyName that no label can have are errors too.
func New(config Config) (*Source, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	client, connections, err := connect(config)
	if err != nil {
		return nil, err
	}
	return &Source{config: config, client: client, connections: connections, refusalPause: refusalPause}, nil
}

// Run watches until ctx ends, and then returns nil once nothing of it runs any more. The error is
// always nil: whatever an API server can answer, a later answer may be better.
//
// Sink.Synced is called after Services, EndpointSlices and this node's Node (if there is one: a
// Node may register later) have been listed and handed over, and ServiceCIDRs too unless the API
// server refuses them: those narrow what is dropped, and do not matter to Services that exist.
func (s *Source) Run(ctx context.Context, sink tracker.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	// Connections are kept open for reuse, each with goroutines, unless somebody says otherwise. Closing
	// the idle ones would not do: one whose watch was ended just now does not count as idle yet.
	defer s.connections.CloseAll()
	var informers sync.WaitGroup
	defer informers.Wait()
	defer cancel()

	var waitFor []cache.DoneChecker
	for _, f := range s.feeds(sink) {
		synced, err := f.start(ctx, &informers)
		if err != nil {
			return fmt.Errorf("watching %s: %w", f.resource, err)
		}
		waitFor = append(waitFor, synced)
	}
	if cache.WaitFor(ctx, "", waitFor...) {
		sink.Synced()
	}
	<-ctx.Done()
	return nil
}
