package manifests

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/nftproxy/nftproxy/tracker"
)

// Objects holds the objects of the manifests in a directory, each kind sorted by namespace and name. Objects of other
// kinds are left out. All are as written: without defaults, and validated only as far as decoding does.
type Objects struct {
	// Nodes are all Nodes, also those that the proxy does not run on.
	Nodes []*corev1.Node
	// ServiceCIDRs have the ranges of ClusterIPs.
	ServiceCIDRs []*networkingv1.ServiceCIDR
	// Services include those that a proxy skips.
	Services []*corev1.Service
	// EndpointSlices may belong to Services that are not there.
	EndpointSlices []*discoveryv1.EndpointSlice
}

// Load reads the manifests in a directory, or a single file, once. It returns all errors, joined: a DecodeError, a
// DuplicateError, a file that cannot be read. With them it returns the Objects of the files without errors.
func Load(path string) (Objects, error) {
	var d directory
	var errs []error
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		errs = d.readOne(path)
	} else {
		errs = d.refresh(path)
	}
	all, duplicates := d.objects()
	errs = append(errs, duplicates...)

	var objects Objects
	for _, id := range slices.SortedFunc(maps.Keys(all), id.compare) {
		objects.add(all[id])
	}
	return objects, errors.Join(errs...)
}

// readOne makes the directory hold one file.
func (d *directory) readOne(path string) []error {
	text, err := readFile(path)
	if err != nil {
		return []error{err}
	}
	name := filepath.Base(path)
	f, err := parseFile(name, text, nil)
	if err != nil {
		return flatten(err)
	}
	d.files = map[string]*file{name: f}
	return nil
}

func (o *Objects) add(obj object) {
	switch v := obj.value.(type) {
	case *corev1.Node:
		o.Nodes = append(o.Nodes, v)
	case *networkingv1.ServiceCIDR:
		o.ServiceCIDRs = append(o.ServiceCIDRs, v)
	case *corev1.Service:
		o.Services = append(o.Services, v)
	case *discoveryv1.EndpointSlice:
		o.EndpointSlices = append(o.EndpointSlices, v)
	}
}

// Feed hands all objects to sink, and then says that they are all.
func (o *Objects) Feed(sink tracker.Sink) {
	for _, v := range o.Nodes {
		sink.SetNode(v)
	}
	for _, v := range o.ServiceCIDRs {
		sink.SetServiceCIDR(v)
	}
	for _, v := range o.Services {
		sink.SetService(v)
	}
	for _, v := range o.EndpointSlices {
		sink.SetEndpointSlice(v)
	}
	sink.Synced()
}
