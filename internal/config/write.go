package config

import (
	"fmt"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/wholefile"
)

// Versions of the configuration, as Write takes them and an apiVersion ends with them.
const (
	V1alpha1 = "v1alpha1"
	V1alpha2 = "v1alpha2"
)

// Write writes a configuration to a file, as YAML of a version. It returns the settings that v1alpha1 cannot express.
func Write(c *v1alpha2.KubeProxyConfiguration, version, path string) (lost []v1alpha2.Loss, err error) {
	var document any = c
	switch version {
	case V1alpha2:
	case V1alpha1:
		var older *kubeproxyv1alpha1.KubeProxyConfiguration
		older, lost = v1alpha2.ToV1alpha1(c)
		document = older
	default:
		return nil, fmt.Errorf("write configuration: version %q must be %s or %s", version, V1alpha1, V1alpha2)
	}
	data, err := yaml.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("write configuration %s: %w", path, err)
	}
	if err := wholefile.Write(path, data, 0o644); err != nil {
		return nil, fmt.Errorf("write configuration %s: %w", path, err)
	}
	return lost, nil
}
