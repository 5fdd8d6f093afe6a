package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
)

// The Service addresses that the manifests have, IPv4 and IPv6.
var (
	webClusterIP    = addresses(80, "10.96.0.10", "fd00:10:96::a")
	webLoadBalancer = addresses(80, "192.0.2.10", "2001:db8:192::10")
	webNodePort     = addresses(30080, lab.NodeAddrs.IPv4.String(), lab.NodeAddrs.IPv6.String())
	logClusterIP    = addresses(514, "10.96.0.20", "fd00:10:96::14")
	emptyClusterIP  = addresses(80, "10.96.0.30", "fd00:10:96::1e")
)

func addresses(port uint16, ipv4, ipv6 string) [2]netip.AddrPort {
	return [2]netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr(ipv4), port),
		netip.AddrPortFrom(netip.MustParseAddr(ipv6), port),
	}
}

// demo holds the state that the steps share.
type demo struct {
	lab      *lab.Lab
	programs programs
	// rules reads the node's nftables.
	rules *nft.Conn
	// manifests is the directory that the proxy watches.
	manifests string
	// proxy programs the rules. server is there in the step that runs both apart.
	proxy, server *proxy
	// servers are those of the pods, by name.
	servers map[string]*server
	out     io.Writer
}

// run shows everything, in a lab that is new, and tells of it on out. With keep it leaves all running until ctx ends.
func run(ctx context.Context, l *lab.Lab, programs programs, out io.Writer, keep bool) (err error) {
	dir, err := os.MkdirTemp("", "nftproxy-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	rules, err := nft.Dial(nft.Config{NetNS: int(l.Node.NetNS().Fd())})
	if err != nil {
		return err
	}
	defer rules.Close()
	d := &demo{lab: l, programs: programs, rules: rules, manifests: filepath.Join(dir, "manifests"), servers: map[string]*server{}, out: out}
	defer func() {
		for _, p := range []*proxy{d.proxy, d.server} {
			if p != nil {
				err = errors.Join(err, p.stop())
			}
		}
	}()
	end := d.leave
	if keep {
		end = d.stay
	}
	for _, step := range []func(context.Context) error{d.build, d.startProxy, d.balance, d.change, d.explain, d.apart, end} {
		if err := errors.Join(ctx.Err(), step(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, format+"\n", args...)
}

// build fills the lab and writes the manifests.
func (d *demo) build(ctx context.Context) error {
	d.say(`1. A cluster of network namespaces

            pods: client, web-1, web-2         pods: web-3, web-4
                      |                                |
    outside ------- node-1 ------------------------- node-2
                      kube-proxy runs here
`)
	if err := d.rules.Probe(ctx, nil); err != nil {
		return err
	}
	for _, p := range pods {
		if err := d.startPod(p); err != nil {
			return err
		}
	}
	if err := os.Mkdir(d.manifests, 0o755); err != nil {
		return err
	}
	if err := writeManifests(d.manifests); err != nil {
		return err
	}
	d.say("    Services: shop/web (TCP, 4 pods), shop/log (UDP, the same 4 pods), shop/empty (no pods)")
	return nil
}

// startPod has a pod serve: a new one, or one that served before.
func (d *demo) startPod(p pod) (err error) {
	if before := d.servers[p.name]; before != nil {
		d.servers[p.name], err = serve(before.host, p.addrs[:])
	} else {
		d.servers[p.name], err = p.start(d.lab)
	}
	return err
}

// startProxy starts the proxy and waits for the first connection through it.
func (d *demo) startProxy(ctx context.Context) (err error) {
	d.say("\n2. %s starts on node-1\n\n    kube-proxy --manifests DIR %s\n", short(d.programs.kubeProxy),
		strings.Join(wrap(proxyArgs, 68), " \\\n        "))
	begin := time.Now()
	if d.proxy, err = d.runKubeProxy("kube-proxy", append([]string{"--manifests", d.manifests}, proxyArgs...)...); err != nil {
		return err
	}
	first, err := d.firstAnswer(ctx)
	if err != nil {
		return err
	}
	// The node tracks the tries that got lost as connections to nowhere, for two minutes: a
	// later client that draws the same source port would inherit one.
	if err := d.lab.Node.FlushConntrack(); err != nil {
		return err
	}
	d.say("    First connection to %s answered %s after the program was started.", webClusterIP[0], milliseconds(first.Sub(begin)))
	return nil
}

// runKubeProxy starts kube-proxy on the node with a log of the given name.
func (d *demo) runKubeProxy(log string, args ...string) (*proxy, error) {
	return startProxy(d.lab.Node, d.programs.kubeProxy, filepath.Join(filepath.Dir(d.manifests), log+".log"), args...)
}

// firstAnswer dials the Service until an endpoint answers. A try is short, since before
// the rules are there a packet to a Service gets lost.
func (d *demo) firstAnswer(ctx context.Context) (first time.Time, err error) {
	c := client{d.lab.Client, "tcp", webClusterIP[0]}
	err = d.lab.Client.Do(func() error {
		for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); {
			if r, err := c.ask(10 * time.Millisecond); err == nil {
				first = r.answered
				return nil
			}
			if err := errors.Join(ctx.Err(), d.proxy.alive()); err != nil {
				return err
			}
		}
		return fmt.Errorf("no connection to %s within 15 s; kube-proxy said last: %s", c.to, d.proxy.lastWords())
	})
	return first, err
}

// balance sends connections to every kind of address.
func (d *demo) balance(ctx context.Context) error {
	d.say("\n3. Connections spread over the pods")
	for _, b := range []struct {
		title, network string
		host           *lab.Host
		to             [2]netip.AddrPort
		each           int
	}{
		{"The client pod dials the ClusterIP", "tcp", d.lab.Client, webClusterIP, 200},
		{"The host outside dials the load balancer's address", "tcp", d.lab.Outside, webLoadBalancer, 200},
		{"The host outside dials the node port", "tcp", d.lab.Outside, webNodePort, 50},
		{"The client pod sends datagrams to the UDP Service", "udp", d.lab.Client, logClusterIP, 50},
	} {
		d.say("\n    %s: %d to %s, %d to %s", b.title, b.each, b.to[0], b.each, b.to[1])
		var tallies [2]*tally
		for family, to := range b.to {
			var err error
			if tallies[family], err = (client{b.host, b.network, to}).burst(ctx, b.each); err != nil {
				return err
			}
		}
		printTallies(d.out, pods, tallies)
	}
	return d.refusal()
}

// refusal dials the Service that has no endpoints.
func (d *demo) refusal() error {
	d.say("\n    The client pod dials shop/empty, which has no pods")
	late := false
	for _, to := range emptyClusterIP {
		took, outcome := client{d.lab.Client, "tcp", to}.outcomeOfOne()
		if !errors.Is(outcome, syscall.ECONNREFUSED) {
			return fmt.Errorf("a connection to %s, which nobody serves, is not refused: %w", to, outcome)
		}
		d.say("    %-22s connection refused, after %s", to, milliseconds(took))
		late = late || took > time.Second
	}
	if late {
		d.say("    (On one machine, TCP over IPv6 heeds the refusal of its second packet only, sent after 1 s.)")
	}
	return nil
}

// leave stops the proxy, sees that its rules stay, and has them removed.
func (d *demo) leave(ctx context.Context) error {
	d.say("\n7. kube-proxy stops, its rules stay until they are removed\n")
	stopping := d.proxy
	d.proxy = nil
	if err := stopping.stop(); err != nil {
		return err
	}
	const n = 20
	for _, to := range webClusterIP {
		if _, err := (client{d.lab.Client, "tcp", to}).burst(ctx, n); err != nil {
			return fmt.Errorf("after kube-proxy stopped: %w", err)
		}
	}
	d.say("    SIGTERM: kube-proxy ended with code 0, and %d of %d new connections after that were answered.", 2*n, 2*n)
	if err := d.cleanup(ctx); err != nil {
		return err
	}
	d.say("    kube-proxy --cleanup: tables ip %s and ip6 %s are gone.", tableName, tableName)
	d.say("    The namespaces and files of this demo are removed now.")
	return nil
}

// cleanup has the proxy remove its tables, and makes sure of it.
func (d *demo) cleanup(ctx context.Context) error {
	if _, err := runOnNode(ctx, d.lab.Node, d.programs.kubeProxy, "--cleanup"); err != nil {
		return err
	}
	for _, family := range nft.Families {
		t, err := d.rules.ReadTable(ctx, family, tableName)
		if err != nil {
			return err
		}
		if t != nil {
			return fmt.Errorf("kube-proxy --cleanup left table %s %s", family, tableName)
		}
	}
	return nil
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}
