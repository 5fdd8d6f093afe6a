package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/internal/node"
	"github.com/nftproxy/nftproxy/source/apiserver"
	"github.com/nftproxy/nftproxy/tracker"
)

// options holds the settings of the command line, or of the configuration file.
type options struct {
	configFile, writeConfigTo string
	writeConfigVersion        string
	cleanup, initOnly         bool
	master, manifests         string
	nodeLocal                 nodeLocalOptions
	// serviceProxyName is empty for the proxy of all Services without the label.
	serviceProxyName string
	// leftovers is the flag --leftovers; config has the setting.
	leftovers v1alpha2.LeftoversPolicy
	// drainTimeout is the flag --leftovers-drain-timeout; config has the setting.
	drainTimeout time.Duration

	// config holds the flags' values; complete replaces it by the file's. Then it is valid.
	config *v1alpha2.KubeProxyConfiguration
	// flags are shown by /flagz.
	flags *pflag.FlagSet
	// file is the file that complete read; nil without --config.
	file *config.File
	// warnings are complete's warnings, one line each.
	warnings []string

	// Flags without a field of config.
	hostname                 string
	bindAddress, clusterCIDR string
	healthzAddress           string
	metricsAddress           string
	healthzPort, metricsPort int32
	ipvsSyncPeriod           time.Duration
	ipvsMinSyncPeriod        time.Duration
}

func defaultOptions() *options {
	// As in kube-proxy, the flags have the defaults of v1alpha1.
	c, _ := v1alpha2.FromV1alpha1(&kubeproxyv1alpha1.KubeProxyConfiguration{})
	v1alpha2.SetDefaults(c)
	return &options{
		config:         c,
		healthzAddress: c.HealthzBindAddress,
		metricsAddress: c.MetricsBindAddress,
		healthzPort:    v1alpha2.HealthzPort,
		metricsPort:    v1alpha2.MetricsPort,

		drainTimeout: c.Linux.LeftoversDrainTimeout.Duration,

		writeConfigVersion: config.V1alpha2,
		ipvsSyncPeriod:     c.SyncPeriod.Duration,
		ipvsMinSyncPeriod:  c.MinSyncPeriod.Duration,
	}
}

// validate checks the flags that are not part of the configuration.
func (o *options) validate() error {
	if o.writeConfigVersion != config.V1alpha1 && o.writeConfigVersion != config.V1alpha2 {
		return fmt.Errorf("--write-config-version: %q must be %s or %s",
			o.writeConfigVersion, config.V1alpha1, config.V1alpha2)
	}
	if l := o.leftovers; l != "" && l != v1alpha2.LeftoversRemove && l != v1alpha2.LeftoversReport {
		return fmt.Errorf("--leftovers: %q must be %s or %s", l, v1alpha2.LeftoversRemove, v1alpha2.LeftoversReport)
	}
	if o.drainTimeout < 0 {
		return fmt.Errorf("--leftovers-drain-timeout: %v must not be negative; 0 ends connections at once", o.drainTimeout)
	}
	return checkServiceProxyName(o.serviceProxyName)
}

const serviceProxyNameHelp = "Serve the Services whose label service.kubernetes.io/service-proxy-name has this value, instead of those without the label"

// checkServiceProxyName checks the flag: any value of a label, which any table's name can contain.
func checkServiceProxyName(name string) error {
	if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
		return fmt.Errorf("--service-proxy-name: %q: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// checkOneSource refuses several sources of Services at once.
func (o *options) checkOneSource(flags *pflag.FlagSet) error {
	apiServer := flags.Changed("kubeconfig") || o.master != ""
	switch {
	case o.manifests != "" && apiServer:
		return errors.New("--manifests: cannot be combined with --kubeconfig or --master: Services come from one place")
	case o.nodeLocal.Source != "" && (apiServer || o.manifests != ""):
		return errors.New("--node-local-source (nodeLocal.source): cannot be combined with --kubeconfig, --master or --manifests: Services come from one place")
	}
	return nil
}

// compiler returns the compiler's configuration. Errors name the file or the flag.
func (o *options) compiler() (compiler.Config, error) {
	if err := o.checkRunnable(); err != nil {
		return compiler.Config{}, err
	}
	out, err := config.Compiler(o.config)
	out.ServiceProxyName = o.serviceProxyName
	if err != nil && o.file != nil {
		err = fmt.Errorf("configuration %s: %w", o.file.Path, err)
	}
	return out, err
}

// nodeName returns the name of the Node that this proxy runs on, as the kubelet would choose it.
func (o *options) nodeName() (string, error) {
	name := o.config.HostnameOverride
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

// source returns the source of Services: an API server or a directory of manifests.
func (o *options) source(nodeName string, hooks sourceHooks) (tracker.Source, error) {
	if o.manifests != "" {
		source := manifests.New(o.manifests)
		source.OnFailing, source.Guard, source.MayBeEmpty = hooks.onFailing, hooks.guard, o.serviceProxyName != ""
		return node.NewSource(source, o.guard(nodeName, hooks)), nil
	}
	apiserverConfig := o.apiserver(nodeName)
	apiserverConfig.OnFailing, apiserverConfig.Guard = hooks.onFailing, hooks.guard
	source, err := apiserver.New(apiserverConfig)
	if err != nil {
		return nil, err
	}
	return node.NewSource(source, o.guard(nodeName, hooks)), nil
}

func (o *options) apiserver(nodeName string) apiserver.Config {
	client := o.config.ClientConnection
	return apiserver.Config{
		Kubeconfig:         client.Kubeconfig,
		Master:             o.master,
		ContentType:        client.ContentType,
		AcceptContentTypes: client.AcceptContentTypes,
		QPS:                client.QPS,
		Burst:              int(client.Burst),
		NodeName:           nodeName,
		Details:            o.nodeLocal.Serve != "",
		ServiceProxyName:   o.serviceProxyName,
	}
}

// events returns the poster of events; nil without an API server.
func (o *options) events(ctx context.Context, nodeName string) (*node.Events, error) {
	if o.manifests != "" || o.nodeLocal.Source != "" {
		return nil, nil
	}
	settings, err := apiserver.RESTConfig(o.apiserver(nodeName))
	if err != nil {
		return nil, err
	}
	return node.NewEvents(ctx, settings, nodeName)
}

// guard returns the settings for the guard of the Node. With a directory of manifests, which lists everything, it does
// not wait.
func (o *options) guard(nodeName string, hooks sourceHooks) node.Options {
	options := node.Options{
		NodeName:     nodeName,
		Override:     config.NodeIPOverride(o.config),
		FamilyPolicy: corev1.IPFamilyPolicy(o.config.IPFamilyPolicy),
		NodeCIDR:     o.config.DetectLocalMode == v1alpha2.LocalModeNodeCIDR,
		OnMissing:    hooks.onMissing,
	}
	if o.manifests == "" {
		options.Wait, options.PreviousNode = node.DefaultWait, hooks.previousNode
	}
	return options
}
