package ruledump

import (
	"context"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/manifests"
	"github.com/nftproxy/nftproxy/source/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// FromCluster lists Services, EndpointSlices, the Node and ServiceCIDRs once and compiles them. It changes nothing and
// needs the permission to list those four, as the proxy itself has it.
func FromCluster(ctx context.Context, kubeconfig string, c Compilation) (*Snapshot, error) {
	objects, err := ClusterObjects(ctx, kubeconfig, c.Node)
	if err != nil {
		return nil, err
	}
	return FromObjects(Cluster, objects, c)
}

// ClusterObjects lists the objects of a cluster that a proxy on the node reads.
func ClusterObjects(ctx context.Context, kubeconfig, node string) (*manifests.Objects, error) {
	settings, err := apiserver.RESTConfig(apiserver.Config{Kubeconfig: kubeconfig, QPS: -1})
	if err != nil {
		return nil, err
	}
	collections, err := apiserver.NewCollections(settings, nil)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return list(ctx, collections, node)
}

func list(ctx context.Context, collections apiserver.Collections, node string) (*manifests.Objects, error) {
	var o manifests.Objects
	for _, kind := range []struct {
		name string
		apiserver.Collection
		// fields selects objects. The proxy's role allows to list Nodes, not to get one.
		fields fields.Set
		// optional says that servers before Kubernetes 1.33 do not have the kind.
		optional bool
	}{
		{name: "Nodes", Collection: collections.Nodes, fields: fields.Set{"metadata.name": node}},
		{name: "Services", Collection: collections.Services},
		{name: "EndpointSlices", Collection: collections.EndpointSlices},
		{name: "ServiceCIDRs", Collection: collections.ServiceCIDRs, optional: true},
	} {
		err := pager.New(kind.List).EachListItem(ctx, metav1.ListOptions{FieldSelector: kind.fields.String()}, func(obj runtime.Object) error {
			o.Add(obj)
			return nil
		})
		if err != nil && !(kind.optional && apierrors.IsNotFound(err)) {
			return nil, fmt.Errorf("list %s: %w", kind.name, err)
		}
	}
	return &o, nil
}
