package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
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

// nodeLocalHistory limits the deleted Service ports that a server remembers, so that clients that come back need not be
// sent everything. Each takes some 200 bytes.
const nodeLocalHistory = 30_000

// nodeLocalOptions are the flags for the node-local API.
type nodeLocalOptions struct {
	v1alpha2.NodeLocalConfiguration
	// keys are the labels and annotations of Services that a client asks for.
	keys model.ServiceKeys
}

func (n *nodeLocalOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.Serve, "serve-node-local", "", "Serve the node-local API to other programs, at unix:///PATH, or at tcp://HOST:PORT with the --node-local-*-file flags")
	n.addAuthorizeFlag(flags)
	n.addSourceFlags(flags)
	n.addFileFlags(flags)
}

func (n *nodeLocalOptions) addAuthorizeFlag(flags *pflag.FlagSet) {
	const usage = "Serve a node over tcp:// only to clients with a certificate for system:node:NAME (common name, or alternative name); " +
		"false lets every certificate of the CA watch every node (default true)"
	flags.BoolFunc("authorize-node-names", usage, func(text string) error {
		yes, err := strconv.ParseBool(text)
		n.AuthorizeNodeNames = &yes
		return err
	})
}

func (n *nodeLocalOptions) addSourceFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.Source, "node-local-source", "", "Take Services from the node-local server at unix:///PATH or tcp://HOST:PORT instead of an API server")
	limits := nodelocal.DefaultLimits
	flags.Int32Var(&n.Limits.Ports, "node-local-max-ports", 0, fmt.Sprintf("The limit of Service ports that the node-local server may send; 0 is %d", limits.Ports))
	flags.Int32Var(&n.Limits.Addresses, "node-local-max-addresses", 0, fmt.Sprintf("The limit of addresses of those ports; 0 is %d", limits.Addresses))
	flags.Int64Var(&n.Limits.Bytes, "node-local-max-bytes", 0, fmt.Sprintf("The limit of bytes in a batch of the node-local server; 0 is %d", limits.Bytes))
}

func (n *nodeLocalOptions) addFileFlags(flags *pflag.FlagSet) {
	flags.StringVar(&n.CertFile, "node-local-cert-file", "", "The certificate of this side of the node-local API over tcp://, in PEM")
	flags.StringVar(&n.KeyFile, "node-local-key-file", "", "The key of that certificate, in PEM")
	flags.StringVar(&n.CAFile, "node-local-ca-file", "", "The authority that signs the certificates of the other side of the node-local API over tcp://, in PEM")
}

// apply overrides the section of a configuration by the flags that are set.
func (n *nodeLocalOptions) apply(c *v1alpha2.KubeProxyConfiguration) {
	all := n.NodeLocalConfiguration
	if file := c.NodeLocal; file != nil {
		all.Serve = cmp.Or(all.Serve, file.Serve)
		all.Source = cmp.Or(all.Source, file.Source)
		all.CertFile = cmp.Or(all.CertFile, file.CertFile)
		all.KeyFile = cmp.Or(all.KeyFile, file.KeyFile)
		all.CAFile = cmp.Or(all.CAFile, file.CAFile)
		all.AuthorizeNodeNames = cmp.Or(all.AuthorizeNodeNames, file.AuthorizeNodeNames)
		all.Limits.Ports = cmp.Or(all.Limits.Ports, file.Limits.Ports)
		all.Limits.Addresses = cmp.Or(all.Limits.Addresses, file.Limits.Addresses)
		all.Limits.Bytes = cmp.Or(all.Limits.Bytes, file.Limits.Bytes)
	}
	n.NodeLocalConfiguration = all
	if all != (v1alpha2.NodeLocalConfiguration{}) {
		c.NodeLocal = &all
	}
}

func (n *nodeLocalOptions) files() nodelocal.TLSFiles {
	return nodelocal.TLSFiles{Cert: n.CertFile, Key: n.KeyFile, CA: n.CAFile}
}

// reasonUnknownValue is the metric's reason for Service ports with a value that only later versions know.
const reasonUnknownValue = "unknown_value"

// newClient returns a client of the source with the caller's options and those of the flags.
func (n *nodeLocalOptions) newClient(ctx context.Context, options nodelocal.Options) (*nodelocal.Client, error) {
	options.Logger = klog.FromContext(ctx)
	options.OnSkip = func(error) { metrics.CountSkip(tracker.KindService, reasonUnknownValue) }
	options.Limits = nodelocal.Limits{Ports: int(n.Limits.Ports), Addresses: int(n.Limits.Addresses), Bytes: int(n.Limits.Bytes)}
	options.ServiceKeys = n.keys
	if files := n.files(); files.Any() {
		options.TLS = func() (*tls.Config, error) {
			config, err := files.Client()
			if err != nil {
				err = fmt.Errorf("--node-local-cert-file, --node-local-key-file, --node-local-ca-file: %w", err)
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
	options := server.Options{
		Logger:  klog.FromContext(ctx),
		AnyNode: !ptr.Deref(n.AuthorizeNodeNames, true),
		Hooks:   server.Hooks{OnWatchers: metrics.SetNodeLocalWatchers, OnBatch: metrics.ObserveNodeLocalBatch, OnRefused: metrics.CountNodeLocalRefused},
	}
	if files := n.files(); files.Any() {
		var err error
		if options.TLS, err = files.Server(); err != nil {
			return fmt.Errorf("--node-local-cert-file, --node-local-key-file, --node-local-ca-file: %w", err)
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
