package conformance

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/conntrack"
	"github.com/nftproxy/nftproxy/internal/health"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/tracker"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// startProxy runs the proxy for node1 in this process until the test ends: all of it except the
// command around it. It returns when the proxy has programmed what there is.
func (c *cluster) startProxy(serviceProxyName string) {
	c.t.Helper()
	source, err := apiserver.New(apiserver.Config{Kubeconfig: c.kubeconfig, NodeName: node1, ServiceProxyName: serviceProxyName})
	if err != nil {
		c.t.Fatal(err)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(c.t.Output()), textlogger.Verbosity(2)))
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), logger))
	t := tracker.New(tracker.Options{NodeName: node1, ServiceProxyName: serviceProxyName, Logger: logger})
	backend, flows := c.backend()
	onSync, synced := c.afterSync(ctx)
	loop := model.NewLoop(t, backend, model.LoopOptions{Logger: logger, OnSync: onSync})
	var parts errgroup.Group
	parts.Go(func() error { return source.Run(ctx, t) })
	parts.Go(func() error { return loop.Run(ctx) })
	parts.Go(func() error {
		backend.Watch(ctx)
		return nil
	})
	parts.Go(func() error {
		flows.Run(ctx)
		return nil
	})
	c.t.Cleanup(func() {
		stop()
		if err := parts.Wait(); err != nil {
			c.t.Error(err)
		}
	})
	select {
	case <-synced:
	case <-time.After(await.Patience):
		c.t.Fatal("the proxy does not program what there is")
	}
}

// afterSync serves health checks on node1 after each Sync, and closes synced after the first.
func (c *cluster) afterSync(ctx context.Context) (onSync func(model.SyncResult), synced <-chan struct{}) {
	checks := health.NewServices(health.ServicesOptions{Primary: true, Ready: func() bool { return true }})
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	return func(r model.SyncResult) {
		if r.Err != nil {
			return
		}
		if err := c.lab.Node.Do(func() error {
			checks.Apply(ctx, r.Changes)
			return nil
		}); err != nil {
			c.t.Error(err)
		}
		once()
	}, first
}

// backend writes to node1's kernel.
func (c *cluster) backend() (*proxy.Backend, *conntrack.Cleaner) {
	c.t.Helper()
	conn, err := nft.Dial(nft.Config{NetNS: int(c.lab.Node.NetNS().Fd())})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	flows, err := conntrack.NewCleaner(conntrack.CleanerOptions{NetNS: int(c.lab.Node.NetNS().Fd())})
	if err != nil {
		c.t.Fatal(err)
	}
	config := compiler.Default()
	for cidr := range strings.SplitSeq(clusterCIDR, ",") {
		config.DetectLocal.CIDRs = append(config.DetectLocal.CIDRs, netip.MustParsePrefix(cidr))
	}
	b, err := proxy.NewBackend(conn, config, proxy.Hooks{})
	if err != nil {
		c.t.Fatal(err)
	}
	b.RemoveStaleFlows(flows)
	return b, flows
}

// startWithCommand builds a cluster and runs the kube-proxy command on node1.
func startWithCommand(t *testing.T, args ...string) (*cluster, *command) {
	t.Helper()
	c := build(t)
	c.server, c.kubeconfig = lab.APIServer(t, c.lab.Node)
	c.connect(c.lab.Node.DialContext)
	return c, c.runCommand(args...)
}

// command is a run of the kube-proxy command.
type command struct {
	c       *cluster
	process *lab.Process
}

func (c *cluster) runCommand(args ...string) *command {
	c.t.Helper()
	args = append([]string{
		"--kubeconfig", c.kubeconfig, "--hostname-override", node1, "--cluster-cidr", clusterCIDR, "-v", "2",
		"--conntrack-max-per-core", "0", // That is the machine's, not the namespace's.
	}, args...)
	return &command{c: c, process: lab.Start(c.t, c.lab.Node, "kube-proxy", args...)}
}

// stop ends the command as a kubelet does, and waits for it.
func (p *command) stop() {
	p.c.t.Helper()
	if err := p.process.Stop(p.c.t); err != nil {
		p.c.t.Errorf("kube-proxy after SIGTERM: %v", err)
	}
}

func TestMain(m *testing.M) { lab.Main(m) }
