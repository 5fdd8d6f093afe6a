// Package config reads kube-proxy's configuration and turns it into what this proxy's
// libraries take. Errors name the field, in the words of the configuration file.
package config

import (
	"errors"
	"fmt"
	"os"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// APIVersion and Kind are what a configuration file must say it is.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// Load reads a configuration file. Errors name the file.
func Load(path string) (*kubeproxyv1alpha1.KubeProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse reads a KubeProxyConfiguration v1alpha1. Unknown and repeated fields are errors.
func Parse(data []byte) (*kubeproxyv1alpha1.KubeProxyConfiguration, error) {
	document, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var c kubeproxyv1alpha1.KubeProxyConfiguration
	strict, err := json.UnmarshalStrict(document, &c)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return nil, fmt.Errorf("apiVersion %q, kind %q: want %s, %s", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	return &c, nil
}
