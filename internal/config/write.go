package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
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
	if err := ReplaceFile(path, data, 0o644); err != nil {
		return nil, fmt.Errorf("write configuration %s: %w", path, err)
	}
	return lost, nil
}

// ReplaceFile writes a file whole or not at all. A new file gets the mode; one that is there keeps its own. It writes in
// place if the path is no regular file, such as /dev/stdout, or if it cannot write the directory.
func ReplaceFile(path string, data []byte, mode fs.FileMode) error {
	if info, err := os.Stat(path); err == nil {
		target, err := filepath.EvalSymlinks(path) // of /dev/stdout there is none where it is a pipe
		if err != nil || !info.Mode().IsRegular() {
			return os.WriteFile(path, data, mode)
		}
		path, mode = target, info.Mode().Perm()
	}
	draft, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return os.WriteFile(path, data, mode)
	}
	_, err = draft.Write(data)
	if err = errors.Join(err, draft.Chmod(mode), draft.Sync(), draft.Close()); err == nil {
		err = os.Rename(draft.Name(), path)
	}
	if err != nil {
		_ = os.Remove(draft.Name())
	}
	return err
}
