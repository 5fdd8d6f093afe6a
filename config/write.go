package config

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/config/v1alpha2"
)

// Write writes a configuration to a file, as YAML of version v1alpha2. A file that is there
// is overwritten.
func Write(c *v1alpha2.KubeProxyConfiguration, path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("write configuration %s: %w", path, err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
