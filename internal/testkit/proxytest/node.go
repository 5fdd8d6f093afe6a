package proxytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/flows"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/nodelocal/server"
	"github.com/nftproxy/nftproxy/tracker"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// node is a lab with the sources of a cluster's objects, and the proxy on the node under test.
type node struct {
	lab    *lab.Lab
	conn   *nft.Conn
	server apiServer
	// tracker has the same objects, for proxies that want {node-local}.
	tracker *tracker.Tracker
	dir     string
	// socketDir is for {node-local}. Nobody else can write to a directory above it, unlike that of dir.
	socketDir string
	args      []string
	proxy     *process
	probe     *probe
	// families are those that the proxy serves.
	families []Family
	// objects are those of the present case.
	objects []apiservertest.Object
	// failed says that the proxy ended or did not settle, so that the node is of no use any more.
	failed  bool
	closers []func()
}

// newNode makes a node with an API server, which is Kubernetes' own if there is a folder of its programs.
func newNode(command []string, config map[string]any, nodes []byte, families []Family, programs string) (n *node, err error) {
	n = &node{families: families}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.dir, err = os.MkdirTemp("", "proxytest"); err != nil {
		return n, err
	}
	n.socketDir = filepath.Join("/run", filepath.Base(n.dir))
	n.closers = append(n.closers, func() { os.RemoveAll(n.dir) }, func() { os.RemoveAll(n.socketDir) })
	if n.lab, err = lab.NewWithBridge(bridgeOf(config)); err != nil {
		return n, err
	}
	n.closers = append(n.closers, n.lab.Close)
	if n.conn, err = nft.Dial(nft.Config{NetNS: int(n.lab.Node.NetNS().Fd())}); err != nil {
		return n, err
	}
	n.closers = append(n.closers, func() { n.conn.Close() })
	if n.probe, err = newProbe(n.lab); err != nil {
		return n, err
	}
	n.closers = append(n.closers, func() { n.probe.server.Close() })
	if n.server, err = startAPIServer(n.lab.Node, programs); err != nil {
		return n, err
	}
	n.closers = append(n.closers, n.server.Close)
	n.tracker = tracker.New(tracker.Options{EveryNode: true, History: 1000})
	objects, err := flows.Objects(nodes)
	if err != nil {
		return n, fmt.Errorf("nodes.yaml: %w", err)
	}
	if err := n.create(objects); err != nil {
		return n, err
	}
	if n.args, err = n.fill(command, config); err != nil {
		return n, err
	}
	return n, nil
}

// fill replaces the placeholders in a command.
func (n *node) fill(command []string, config map[string]any) (args []string, err error) {
	kubeconfig := filepath.Join(n.dir, "kubeconfig")
	if err := n.server.WriteKubeconfig(kubeconfig); err != nil {
		return nil, err
	}
	filled := map[string]any{
		"mode": "nftables", // Kubernetes' kube-proxy without a mode is in mode iptables
		// Otherwise Kubernetes' kube-proxy rests for a second after each change.
		"nftables": map[string]any{"minSyncPeriod": "10ms"},
		"iptables": map[string]any{"minSyncPeriod": "10ms"},
	}
	merge(filled, config)
	if of, ok := config["nftables"].(map[string]any); ok && config["mode"] == "iptables" {
		merge(filled, map[string]any{"iptables": of}) // what cases say of the one mode holds for the other
	}
	merge(filled, map[string]any{
		"hostnameOverride": lab.NodeName,
		"clientConnection": map[string]any{"kubeconfig": kubeconfig},
		// The limit of connections belongs to the whole machine, and a namespace cannot set it.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0},
	})
	data, err := yaml.Marshal(filled)
	if err != nil {
		return nil, err
	}
	configPath := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(configPath, data, 0o600); err != nil {
		return nil, err
	}
	nodeLocal := "unix://" + filepath.Join(n.socketDir, "node-local.sock")
	if slices.ContainsFunc(command, func(arg string) bool { return strings.Contains(arg, "{node-local}") }) {
		if err := n.serveNodeLocal(nodeLocal); err != nil {
			return nil, err
		}
	}
	replacer := strings.NewReplacer("{config}", configPath, "{kubeconfig}", kubeconfig, "{node}", lab.NodeName, "{node-local}", nodeLocal)
	for _, arg := range command {
		args = append(args, replacer.Replace(arg))
	}
	return args, nil
}

func (n *node) serveNodeLocal(target string) error {
	n.tracker.Synced()
	ctx, stop := context.WithCancel(context.Background())
	listener, err := server.Listen(ctx, target, false)
	if err != nil {
		stop()
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.New(n.tracker, server.Options{}).Serve(ctx, listener)
	}()
	n.closers = append(n.closers, func() {
		stop()
		<-ended
	})
	return nil
}

// start starts the proxy.
func (n *node) start() (err error) {
	n.proxy, err = startProcess(n.lab.Node, n.args)
	return err
}

// stop stops the proxy, if it runs.
func (n *node) stop() {
	if n.proxy != nil {
		n.proxy.stop()
	}
}

// close ends everything.
func (n *node) close() {
	n.stop()
	for _, f := range slices.Backward(n.closers) {
		f()
	}
}

// newProbe replaces the probe.
func (n *node) newProbe() error {
	return errors.Join(n.delete(n.probe.objects), n.create(n.probe.next(n.families)))
}

// apply creates or replaces objects of the case.
func (n *node) apply(objects []apiservertest.Object) error {
	for _, o := range objects {
		i := slices.IndexFunc(n.objects, func(old apiservertest.Object) bool { return sameObject(old, o) })
		if i < 0 {
			n.objects = append(n.objects, o)
			if err := n.create([]apiservertest.Object{o}); err != nil {
				return err
			}
			continue
		}
		n.objects[i] = o
		if _, err := n.server.Update(o); err != nil {
			return err
		}
		n.track(o)
	}
	return nil
}

// remove deletes objects of the case.
func (n *node) remove(objects []apiservertest.Object) error {
	n.objects = slices.DeleteFunc(n.objects, func(old apiservertest.Object) bool {
		return slices.ContainsFunc(objects, func(o apiservertest.Object) bool { return sameObject(old, o) })
	})
	return n.delete(objects)
}

func sameObject(a, b apiservertest.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a.GetNamespace() == b.GetNamespace() && a.GetName() == b.GetName()
}

// flush removes all nftables rules of the node.
func (n *node) flush() error {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.lab.Node.NetNS().Fd())))
	if err != nil {
		return err
	}
	c.FlushRuleset()
	return c.Flush()
}

func (n *node) create(objects []apiservertest.Object) error {
	for _, o := range objects {
		if _, err := n.server.Create(o); err != nil {
			return err
		}
		n.track(o)
	}
	return nil
}

// track tells the tracker of an object.
func (n *node) track(o apiservertest.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		n.tracker.SetService(o)
	case *discoveryv1.EndpointSlice:
		n.tracker.SetEndpointSlice(o)
	case *networkingv1.ServiceCIDR:
		n.tracker.SetServiceCIDR(o)
	case *corev1.Node:
		n.tracker.SetNode(o)
	}
}

func (n *node) delete(objects []apiservertest.Object) error {
	for _, o := range objects {
		if err := n.server.Delete(o); err != nil {
			return err
		}
		switch o := o.(type) {
		case *corev1.Service:
			n.tracker.DeleteService(o.Namespace, o.Name)
		case *discoveryv1.EndpointSlice:
			n.tracker.DeleteEndpointSlice(o.Namespace, o.Name)
		case *networkingv1.ServiceCIDR:
			n.tracker.DeleteServiceCIDR(o.Name)
		}
	}
	return nil
}

// replace deletes the objects of the last case and creates others, and then a new probe.
func (n *node) replace(objects []apiservertest.Object) error {
	if err := n.delete(n.objects); err != nil {
		return err
	}
	n.objects = slices.Clone(objects)
	return errors.Join(n.create(objects), n.newProbe())
}

// settle waits until the proxy has applied everything. It returns the families that it serves and those that it does
// not serve; the error is that of the latter.
func (n *node) settle(ctx context.Context) (served []Family, err error) {
	reasons := make([]error, len(n.families))
	done := make(chan struct{})
	for i, f := range n.families {
		go func() {
			reasons[i] = n.probe.await(ctx, n.lab, f, n.proxy)
			done <- struct{}{}
		}()
	}
	for range n.families {
		<-done
	}
	for i, f := range n.families {
		if reasons[i] == nil {
			served = append(served, f)
		}
	}
	if err := errors.Join(reasons...); err != nil {
		return served, err
	}
	return served, awaitQuiet(ctx, n.conn)
}

// ruleset returns the rules of the node, as the programs that are installed list them.
func (n *node) ruleset() string {
	var out strings.Builder
	for _, list := range [][]string{{"nft", "list", "ruleset"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"}} {
		if _, err := exec.LookPath(list[0]); err != nil {
			fmt.Fprintf(&out, "# %s is not installed\n", list[0])
			continue
		}
		err := n.lab.Node.Do(func() error {
			cmd := exec.Command(list[0], list[1:]...)
			cmd.Stdout, cmd.Stderr = &out, &out
			return cmd.Run()
		})
		if err != nil {
			fmt.Fprintf(&out, "# %s: %v\n", strings.Join(list, " "), err)
		}
	}
	return out.String()
}

// commands are those that enter the hosts of the lab, for as long as this process runs.
func (n *node) commands() string {
	var out strings.Builder
	for _, h := range []*lab.Host{n.lab.Node, n.lab.Client, n.lab.Remote, n.lab.Outside} {
		fmt.Fprintf(&out, "nsenter --net=/proc/%d/fd/%d    # %s\n", os.Getpid(), h.NetNS().Fd(), h.Name)
	}
	fmt.Fprintf(&out, "KUBECONFIG=%s    # the API server, from %s\n", filepath.Join(n.dir, "kubeconfig"), lab.NodeName)
	return out.String()
}

// merge puts the fields of from into the fields of to.
func merge(to, from map[string]any) {
	for name, value := range from {
		old, isOld := to[name].(map[string]any)
		added, isAdded := value.(map[string]any)
		if isOld && isAdded {
			value = maps.Clone(old)
			merge(value.(map[string]any), added)
		}
		to[name] = value
	}
}

// bridgeOf returns the name of the bridge to which a configuration wants pods connected, empty for none.
func bridgeOf(config map[string]any) string {
	if detect, ok := config["detectLocal"].(map[string]any); ok && config["detectLocalMode"] == "BridgeInterface" {
		name, _ := detect["bridgeInterface"].(string)
		return name
	}
	return ""
}
