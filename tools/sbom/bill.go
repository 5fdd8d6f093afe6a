package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// billOf returns the bill of materials of programs.
func billOf(version string, programs []string) (*cyclonedx.BOM, error) {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: subjectOf(version, programs)}
	modules := map[string]cyclonedx.Component{}
	var applications []cyclonedx.Component
	var dependencies []cyclonedx.Dependency
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}
		application, err := applicationOf(program, version)
		if err != nil {
			return nil, err
		}
		var refs []string
		for _, m := range linked(info) {
			c, err := moduleComponent(m)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", program, err)
			}
			modules[c.BOMRef] = c
			refs = append(refs, c.BOMRef)
		}
		applications = append(applications, application)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: application.BOMRef, Dependencies: &refs})
	}
	components := append(applications, slices.SortedFunc(maps.Values(modules), func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })...)
	bom.Components, bom.Dependencies = &components, &dependencies
	return bom, nil
}

// subjectOf returns what the bill is of: a program, or the image of several.
func subjectOf(version string, programs []string) *cyclonedx.Component {
	if len(programs) == 1 {
		name := strings.TrimSuffix(filepath.Base(programs[0]), ".exe")
		return &cyclonedx.Component{Type: cyclonedx.ComponentTypeApplication, Name: name, Version: version}
	}
	return &cyclonedx.Component{Type: cyclonedx.ComponentTypeContainer, Name: "nftproxy", Version: version}
}

// linked returns the modules in a program: the standard library, and all that it depends on as they were built.
func linked(info *debug.BuildInfo) []*debug.Module {
	out := []*debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		out = append(out, m)
	}
	return out
}

// moduleComponent describes a module. Its hash is that of go.sum: over the module's files, not over an archive of them.
func moduleComponent(m *debug.Module) (cyclonedx.Component, error) {
	// https://github.com/package-url/purl-spec: type golang is in lower case.
	url := "pkg:golang/" + strings.ToLower(m.Path) + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url}
	if m.Sum != "" {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil {
			return c, fmt.Errorf("checksum %q of module %s: %w", m.Sum, m.Path, err)
		}
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c, nil
}

func applicationOf(program, version string) (cyclonedx.Component, error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return cyclonedx.Component{}, err
	}
	sum, name := sha256.Sum256(data), filepath.Base(program)
	return cyclonedx.Component{
		BOMRef: name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}, nil
}
