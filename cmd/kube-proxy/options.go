package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/config"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/source/manifests"
	"github.com/nftproxy/nftproxy/tracker"
	"github.com/spf13/pflag"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// options is what the flags say. The fields of config have the names that error messages
// use; flagNames translates them back.
type options struct {
	master, kubeconfig, manifests string
	hostname                      string
	metricsAddress                string
	cleanup                       bool
	mode, detectLocalMode         string
	config                        kubeproxyv1alpha1.KubeProxyConfiguration
}

func defaultOptions() *options {
	return &options{metricsAddress: "127.0.0.1:10249"}
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.master, "master", "", "The address of the API server; overrides the one in the kubeconfig file")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file for the API server; without it and without --manifests, the pod's service account is used")
	flags.StringVar(&o.manifests, "manifests", "", "A directory with manifests of Services, EndpointSlices, Nodes and ServiceCIDRs (.yaml, .yml, .json) to take them from instead of an API server; watched for changes")
	flags.StringVar(&o.hostname, "hostname-override", "", "The name of the Node that this proxy runs on; by default the host name")
	flags.StringVar(&o.mode, "proxy-mode", config.ModeNFTables, "Which proxy mode to use: nftables is the only one")
	flags.StringVar(&o.config.ClusterCIDR, "cluster-cidr", "", "The range of the cluster's pods, or one of each IP family separated by a comma; clients outside it are masqueraded when they dial a ClusterIP (detect-local mode ClusterCIDR)")
	flags.StringVar(&o.detectLocalMode, "detect-local-mode", "", "How to tell the cluster's pods from other clients: ClusterCIDR (the default), NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	flags.StringVar(&o.config.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "The bridge that pods are connected to (detect-local mode BridgeInterface)")
	flags.StringVar(&o.config.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "What the names of pods' interfaces on the node start with (detect-local mode InterfaceNamePrefix)")
	flags.StringSliceVar(&o.config.NodePortAddresses, "nodeport-addresses", nil, `The node's addresses on which node ports answer: CIDRs, or "primary" (the default) for the addresses of the Node object`)
	flags.BoolVar(&o.config.NFTables.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to ClusterIPs")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, `The address and port of the metrics server; "" disables it`)
	flags.BoolVar(&o.cleanup, "cleanup", false, "Remove the tables ip kube-proxy and ip6 kube-proxy and exit")
}

// flagNames maps the fields that config names in errors to the flags that set them.
var flagNames = strings.NewReplacer(
	"clusterCIDR:", "--cluster-cidr:",
	"nodePortAddresses:", "--nodeport-addresses:",
	"detectLocalMode:", "--detect-local-mode:",
	"detectLocal.bridgeInterface:", "--pod-bridge-interface:",
	"detectLocal.interfaceNamePrefix:", "--pod-interface-name-prefix:",
	"detectLocal:", "--pod-bridge-interface or --pod-interface-name-prefix:",
	"mode:", "--proxy-mode:",
)

// compiler returns what the flags say of the ruleset; errors name the flag.
func (o *options) compiler() (compiler.Config, error) {
	o.config.Mode = kubeproxyv1alpha1.ProxyMode(o.mode)
	o.config.DetectLocalMode = kubeproxyv1alpha1.LocalMode(o.detectLocalMode)
	c, err := config.Compiler(&o.config)
	if err != nil {
		return c, errors.New(flagNames.Replace(err.Error()))
	}
	return c, nil
}

func (o *options) validate() error {
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		return errors.New("--manifests: cannot be combined with --kubeconfig or --master: Services come from one place")
	}
	if o.metricsAddress != "" {
		if _, _, err := net.SplitHostPort(o.metricsAddress); err != nil {
			return fmt.Errorf("--metrics-bind-address: %w; want an address and port such as 127.0.0.1:10249", err)
		}
	}
	return nil
}

// nodeName returns the name of the Node that this proxy runs on, as the kubelet would choose it.
func (o *options) nodeName() (string, error) {
	name := o.hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the node's name: %w; set --hostname-override", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("the node's name is empty; set --hostname-override")
	}
	return name, nil
}

// source returns where Services come from.
func (o *options) source(nodeName string) (tracker.Source, error) {
	if o.manifests != "" {
		return manifests.New(o.manifests), nil
	}
	return apiserver.New(apiserver.Config{Kubeconfig: o.kubeconfig, Master: o.master, NodeName: nodeName})
}
