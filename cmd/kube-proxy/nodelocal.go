package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// nodeLocalHistory is how many deletions of Services a server remembers, so that clients that come back need not be
// sent everything. Each takes some 200 bytes.
const nodeLocalHistory = 10_000

// nodeLocalOptions is how this process takes part in the node-local API.
type nodeLocalOptions struct {
	// serve and source are addresses; empty is none.
	serve, source string
	files         nodelocal.TLSFiles
}

func (n *nodeLocalOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.serve, "serve-node-local", "", "Serve what this node has to do for Services to other programs, at unix:///PATH, or at tcp://HOST:PORT with the --node-local-*-file flags")
	n.addSourceFlag(flags)
	n.addFileFlags(flags)
}

func (n *nodeLocalOptions) addSourceFlag(flags *pflag.FlagSet) {
	flags.StringVar(&n.source, "node-local-source", "", "Take Services from the node-local server at unix:///PATH or tcp://HOST:PORT instead of an API server")
}

func (n *nodeLocalOptions) addFileFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.files.Cert, "node-local-cert-file", "", "The certificate of this side of the node-local API over tcp://, in PEM")
	flags.StringVar(&n.files.Key, "node-local-key-file", "", "The key of that certificate, in PEM")
	flags.StringVar(&n.files.CA, "node-local-ca-file", "", "Who signs the certificates of the other side of the node-local API over tcp://, in PEM")
}

// validate checks what goes together. o may be nil.
func (n *nodeLocalOptions) validate(o *options, flags *pflag.FlagSet) error {
	if n.source == "" {
		return nil
	}
	if o.manifests != "" || o.master != "" || flags.Changed("kubeconfig") {
		return errors.New("--node-local-source: cannot be combined with --kubeconfig, --master or --manifests: Services come from one place")
	}
	if n.serve != "" {
		return errors.New("--node-local-source: cannot be combined with --serve-node-local: clients can ask that server")
	}
	return nil
}

// reasonUnknownValue is how a metric names Service ports that a node-local server of a later version describes in its own words.
const reasonUnknownValue = "unknown_value"

// newClient returns a client of the source for a node. connected may be nil.
func (n *nodeLocalOptions) newClient(ctx context.Context, nodeName string, connected func(bool)) (*nodelocal.Client, error) {
	options := nodelocal.Options{
		Node: nodeName, Logger: klog.FromContext(ctx), OnConnected: connected,
		OnSkip: func(error) { metrics.CountSkip(tracker.KindService, reasonUnknownValue) },
	}
	if n.files.Any() {
		options.TLS = func() (*tls.Config, error) {
			config, err := n.files.Client()
			if err != nil {
				err = fmt.Errorf("--node-local-cert-file, --node-local-key-file, --node-local-ca-file: %w", err)
			}
			return config, err
		}
	}
	client, err := nodelocal.NewClient(n.source, options)
	if err != nil {
		return nil, fmt.Errorf("--node-local-source: %w", err)
	}
	return client, nil
}

// serveNodeLocal adds a server of what t has to the group.
func serveNodeLocal(ctx context.Context, group *errgroup.Group, t *tracker.Tracker, address string, files nodelocal.TLSFiles) error {
	options := server.Options{
		Logger: klog.FromContext(ctx),
		Hooks:  server.Hooks{OnWatchers: metrics.SetNodeLocalWatchers, OnBatch: metrics.ObserveNodeLocalBatch, OnRefused: metrics.CountNodeLocalRefused},
	}
	if files.Any() {
		var err error
		if options.TLS, err = files.Server(); err != nil {
			return fmt.Errorf("--node-local-cert-file, --node-local-key-file, --node-local-ca-file: %w", err)
		}
	}
	listener, err := server.Listen(ctx, address, options.TLS != nil)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Serving the node-local API", "address", address)
	group.Go(func() error { return server.New(t, options).Serve(ctx, listener) })
	return nil
}
