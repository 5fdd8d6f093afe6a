package apiserver

import (
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"
)

// connect makes clients, and a dialer that tracks all their connections.
func connect(config Config) (Collections, *connrotation.Dialer, error) {
	settings, err := RESTConfig(config)
	if err != nil {
		return Collections{}, nil, err
	}
	// As client-go dials by default.
	dialer := connrotation.NewDialer((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
	settings.Dial = dialer.DialContext
	transport, err := rest.HTTPClientFor(settings)
	if err != nil {
		return Collections{}, nil, describe(config, err)
	}
	collections, err := NewCollections(settings, transport)
	return collections, dialer, describe(config, err)
}

// RESTConfig returns the settings for other clients of the API server, such as a poster of events. It does not connect.
// Errors are those of New.
func RESTConfig(config Config) (*rest.Config, error) {
	config = config.withDefaults()
	settings, err := connectionSettings(config)
	if err != nil {
		return nil, err
	}
	// By default rest.RESTClientFor sends Go's own name, which identifies no program in an audit log.
	settings.UserAgent = rest.DefaultKubernetesUserAgent()
	settings.ContentType = config.ContentType
	settings.AcceptContentTypes = config.AcceptContentTypes
	settings.QPS = config.QPS
	settings.Burst = config.Burst
	if config.QPS > 0 { // one limit for all kinds
		settings.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	return settings, nil
}

// connectionSettings finds the server and the credentials.
func connectionSettings(config Config) (*rest.Config, error) {
	if config.Kubeconfig == "" && config.Master == "" {
		settings, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig given, and no service account to use instead: %w", err)
		}
		return settings, nil
	}
	loaded := clientcmdapi.NewConfig()
	if config.Kubeconfig != "" {
		var err error
		if loaded, err = clientcmd.LoadFromFile(config.Kubeconfig); err != nil {
			return nil, describe(config, err)
		}
		// Paths of certificates are relative to the kubeconfig, not to the working directory.
		if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
			return nil, describe(config, err)
		}
	}
	if config.Master == "" {
		// The loader below takes a missing context, cluster or user for an empty file.
		if err := clientcmd.ConfirmUsable(*loaded, ""); err != nil {
			return nil, describe(config, err)
		}
	}
	// The deferred loader of most programs would use the service account in place of an empty kubeconfig.
	override := &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: config.Master}}
	settings, err := clientcmd.NewDefaultClientConfig(*loaded, override).ClientConfig()
	return settings, describe(config, err)
}

// describe adds the file to an error.
func describe(config Config, err error) error {
	if err == nil {
		return nil
	}
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("it names no API server") // the original suggests a variable without effect
	}
	if config.Kubeconfig == "" {
		return fmt.Errorf("API server %s: %w", config.Master, err)
	}
	return fmt.Errorf("kubeconfig %s: %w", config.Kubeconfig, err)
}
