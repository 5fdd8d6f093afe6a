// Package config reads kube-proxy's configuration, of version v1alpha1 or v1alpha2, and turns
// it into what this module's libraries take. Errors name the field, in the words of the
// configuration file, and what to do about it.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// File is a configuration document that was read.
type File struct {
	// Path is where it is from; empty if Parse read it.
	Path string
	// Config has what the document says, with defaults filled in, and is valid.
	Config *v1alpha2.KubeProxyConfiguration
	// Warnings are about what in the document has no effect, leaves something open, or is missing; one line each.
	Warnings []string

	data []byte
}

// Load reads a configuration file. Errors name the file.
func Load(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	f, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	f.Path = path
	return f, nil
}

// Parse reads a KubeProxyConfiguration in YAML or JSON. As in kube-proxy, a v1alpha1 document may
// have unknown and repeated fields, which are warned about; in a v1alpha2 document they are
// errors unless it sets configHardFail to false. A mode that this proxy does not have is no error
// here: see CheckMode.
func Parse(data []byte) (*File, error) {
	document, repeated, err := toJSON(data)
	if err != nil {
		return nil, err
	}
	version, err := versionOf(document)
	if err != nil {
		return nil, err
	}
	f := &File{data: data, Warnings: repeated}
	var names Names
	if version == v1alpha2.APIVersion {
		err = f.readV1alpha2(document)
	} else {
		names, err = f.readV1alpha1(document)
	}
	if err != nil {
		return nil, err
	}
	v1alpha2.SetDefaults(f.Config)
	if err := Validate(f.Config, names); err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, Warnings(f.Config, names)...)
	return f, nil
}

// versionOf returns the apiVersion of a document of the right kind.
func versionOf(document []byte) (string, error) {
	header, _, err := decode[metav1.TypeMeta](document)
	if err != nil {
		return "", err
	}
	versions := []string{kubeproxyv1alpha1.SchemeGroupVersion.String(), v1alpha2.APIVersion}
	if header.Kind != v1alpha2.Kind || !slices.Contains(versions, header.APIVersion) {
		return "", fmt.Errorf("apiVersion %q, kind %q: must be %s, %s", header.APIVersion, header.Kind, strings.Join(versions, " or "), v1alpha2.Kind)
	}
	return header.APIVersion, nil
}

func (f *File) readV1alpha2(document []byte) error {
	c, unknown, err := decode[v1alpha2.KubeProxyConfiguration](document)
	if err != nil {
		return err
	}
	f.Config = c
	f.Warnings = append(f.Warnings, unknownFields(unknown, v1alpha1Renamed)...)
	if hardFail := c.ConfigHardFail; len(f.Warnings) > 0 && (hardFail == nil || *hardFail) {
		return errors.New(strings.Join(f.Warnings, "; "))
	}
	return nil
}

func (f *File) readV1alpha1(document []byte) (Names, error) {
	c, unknown, err := decode[kubeproxyv1alpha1.KubeProxyConfiguration](document)
	if err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, unknownFields(unknown, v1alpha2Renamed)...)
	f.dropGatedLogging(c)
	names := f.resolveMode(c)
	var losses []v1alpha2.Loss
	f.Config, losses = v1alpha2.FromV1alpha1(c)
	for _, loss := range losses {
		f.Warnings = append(f.Warnings, loss.String())
	}
	return names, nil
}
