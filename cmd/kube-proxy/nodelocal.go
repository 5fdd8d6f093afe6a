package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/metrics"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nodelocal"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
)

// nodeLocalHistory bounds the deleted Service ports, of some 200 bytes each, that a server remembers for clients that
// resume.
const nodeLocalHistory = 30_000

// nodeLocalOptions are the flags for the node-local API.
type nodeLocalOptions struct {
	v1alpha2.NodeLocalConfiguration
	// keys are the labels and annotations of Services that a client requests.
	keys model.ServiceKeys
}

// apply overrides the section of a configuration by the flags that are set.
func (n *nodeLocalOptions) apply(c *v1alpha2.KubeProxyConfiguration) error {
	flags, err := json.Marshal(n.NodeLocalConfiguration) // without the zero values
	if err != nil {
		return err
	}
	n.NodeLocalConfiguration = ptr.Deref(c.NodeLocal, v1alpha2.NodeLocalConfiguration{})
	if err := json.Unmarshal(flags, &n.NodeLocalConfiguration); err != nil {
		return err
	}
	if section := n.NodeLocalConfiguration; section != (v1alpha2.NodeLocalConfiguration{}) {
		c.NodeLocal = &section
	}
	return nil
}

func (n *nodeLocalOptions) files() nodelocal.TLSFiles {
	return nodelocal.TLSFiles{Cert: n.CertFile, Key: n.KeyFile, CA: n.CAFile}
}

const tlsFlags = "--node-local-cert-file, --node-local-key-file, --node-local-ca-file"

// checkTLS refuses tcp:// without the files for TLS.
func (n *nodeLocalOptions) checkTLS(address string) error {
	if strings.HasPrefix(address, "tcp://") && !n.files().Any() {
		return fmt.Errorf("%s needs TLS with client certificates: set %s", address, tlsFlags)
	}
	return nil
}

// newClient returns a client of the source with the options of the caller and of the flags.
func (n *nodeLocalOptions) newClient(ctx context.Context, options nodelocal.Options) (*nodelocal.Client, error) {
	if err := n.checkTLS(n.Source); err != nil {
		return nil, fmt.Errorf("--node-local-source: %w", err)
	}
	options.Logger = klog.FromContext(ctx)
	options.OnSkip = func(error) { metrics.CountSkip(tracker.KindService, "unknown_value") }
	options.Limits = nodelocal.Limits{Ports: int(n.Limits.Ports), Addresses: int(n.Limits.Addresses), Bytes: int(n.Limits.Bytes)}
	options.ServiceKeys = n.keys
	if files := n.files(); files.Any() {
		options.TLS = func() (*tls.Config, error) {
			config, err := files.Client()
			if err != nil {
				err = fmt.Errorf("%s: %w", tlsFlags, err)
			}
			return config, err
		}
	}
	client, err := nodelocal.NewClient(n.Source, options)
	switch {
	case errors.Is(err, nodelocal.ErrNode):
		return nil, fmt.Errorf("--hostname-override: %w", err)
	case err != nil:
		return nil, fmt.Errorf("--node-local-source: %w", err)
	}
	return client, nil
}

// serve adds a server of t's state to the group.
func (n *nodeLocalOptions) serve(ctx context.Context, group *errgroup.Group, t *tracker.Tracker) error {
	if err := n.checkTLS(n.Serve); err != nil {
		return err
	}
	options := server.Options{
		Logger:  klog.FromContext(ctx),
		AnyNode: !ptr.Deref(n.AuthorizeNodeNames, true),
		Hooks:   server.Hooks{OnWatchers: metrics.SetNodeLocalWatchers, OnBatch: metrics.ObserveNodeLocalBatch, OnRefused: metrics.CountNodeLocalRefused},
	}
	if files := n.files(); files.Any() {
		var err error
		if options.TLS, err = files.Server(); err != nil {
			return fmt.Errorf("%s: %w", tlsFlags, err)
		}
	}
	listener, err := server.Listen(ctx, n.Serve, options.TLS != nil)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Serving the node-local API", "address", n.Serve)
	group.Go(func() error { return server.New(t, options).Serve(ctx, listener) })
	return nil
}
