package ruledump

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/model"
	"github.com/nftproxy/nftproxy/tracker"
)

// Compilation holds the node and the configuration for which objects are compiled.
type Compilation struct {
	// Node is the name of the Node.
	Node string
	// Config is the path of a KubeProxyConfiguration; empty for that of Proxy.
	Config string
	// Proxy, if set, is the running proxy whose settings count; nil for kube-proxy's defaults.
	Proxy *Proxy
	// ServiceProxyName is that of a proxy beside another one; empty for the proxy of Services without the label.
	ServiceProxyName string
	// Warn, if set, is called with warnings about the objects or the configuration.
	Warn func(text string)
}

func (c *Compilation) warn(format string, args ...any) {
	if c.Warn != nil {
		c.Warn(fmt.Sprintf(format, args...))
	}
}

// apply compiles the changes and returns the rules.
func (c *Compilation) apply(compiled *compiler.Compiler, origin string, changes *model.Changes) *Snapshot {
	for _, conflict := range compiled.Apply(changes) {
		c.warn("%s is claimed by several Services; %s gets it", conflict.Frontend, conflict.Owner.ServicePortName())
	}
	return &Snapshot{Header: Header{Origin: origin, Node: c.Node}, Tables: compiled.Tables()}
}

// FromManifests compiles the manifests in a directory, or in one file. It refuses a directory with an invalid file,
// unlike the proxy, which uses the valid ones.
func FromManifests(path string, c Compilation) (*Snapshot, error) {
	objects, err := manifests.Load(path)
	if err != nil {
		return nil, err
	}
	return FromObjects(Manifests, &objects, c)
}

// FromObjects compiles objects, which come from Manifests or a Cluster.
func FromObjects(origin string, objects *manifests.Objects, c Compilation) (*Snapshot, error) {
	compilerConfig, options, err := c.load()
	if err != nil {
		return nil, err
	}
	options.OnUnguarded = func(namespace, service string, families []model.Family) {
		c.warn("Service %s/%s: everybody may dial its %s load balancer IPs: loadBalancerSourceRanges has no range of the family, or one of length 0",
			namespace, service, strings.Trim(fmt.Sprint(families), "[]"))
	}
	compiled, err := compiler.New(compilerConfig)
	if err != nil {
		return nil, err
	}
	state := tracker.New(options)
	objects.Feed(state)
	s := c.apply(compiled, origin, state.Changes())
	s.addPlacesOf(objects.EndpointSlices)
	at := slices.IndexFunc(objects.Nodes, func(n *corev1.Node) bool { return n.Name == c.Node })
	if at < 0 {
		c.warn("the %s have no Node %s; these are the rules of a node without addresses and zone", objectsOf[origin], c.Node)
		return s, nil
	}
	s.Addresses = tracker.ParseNode(objects.Nodes[at]).IPs
	return s, nil
}

// Settings names the settings, as in "settings of the proxy at 127.0.0.1:10249".
func (c *Compilation) Settings() string {
	switch {
	case c.Config != "":
		return "settings of " + c.Config
	case c.Proxy != nil:
		return "settings of the proxy at " + c.Proxy.Address
	}
	return "kube-proxy's default settings"
}

// objectsOf names the objects of an origin.
var objectsOf = map[string]string{Manifests: "manifests", Cluster: "objects of the cluster"}

// load returns the settings, for the Node and the service-proxy-name.
func (c *Compilation) load() (out compiler.Config, options tracker.Options, err error) {
	defer func() {
		out.ServiceProxyName, options.ServiceProxyName, options.NodeName = c.ServiceProxyName, c.ServiceProxyName, c.Node
	}()
	switch {
	case c.Config == "" && c.Proxy == nil:
		return compiler.Default(), tracker.Options{}, nil
	case c.Config == "":
		out, err = config.Compiler(c.Proxy.Config)
		return out, config.Tracker(c.Proxy.Config), err
	}
	file, err := config.Load(c.Config)
	if err != nil {
		return compiler.Config{}, tracker.Options{}, err
	}
	for _, warning := range file.Warnings {
		c.warn("configuration %s: %s", c.Config, warning)
	}
	out, err = config.Compiler(file.Config)
	if err != nil {
		return out, tracker.Options{}, fmt.Errorf("configuration %s: %w", c.Config, err)
	}
	return out, config.Tracker(file.Config), nil
}
