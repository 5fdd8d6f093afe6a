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
	"k8s.io/client-go/kubernetes"
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
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return list(ctx, client, node)
}

func list(ctx context.Context, client kubernetes.Interface, node string) (*manifests.Objects, error) {
	var o manifests.Objects
	for _, kind := range []struct {
		name string
		list pager.ListPageFunc
		// fields selects objects. The proxy's role allows to list Nodes, not to get one.
		fields fields.Set
		// optional says that servers before Kubernetes 1.33 do not have the kind.
		optional bool
	}{
		{name: "Nodes", list: pages(client.CoreV1().Nodes().List), fields: fields.Set{"metadata.name": node}},
		{name: "Services", list: pages(client.CoreV1().Services("").List)},
		{name: "EndpointSlices", list: pages(client.DiscoveryV1().EndpointSlices("").List)},
		{name: "ServiceCIDRs", list: pages(client.NetworkingV1().ServiceCIDRs().List), optional: true},
	} {
		err := pager.New(kind.list).EachListItem(ctx, metav1.ListOptions{FieldSelector: kind.fields.String()}, func(obj runtime.Object) error {
			o.Add(obj)
			return nil
		})
		if err != nil && !(kind.optional && apierrors.IsNotFound(err)) {
			return nil, fmt.Errorf("list %s: %w", kind.name, err)
		}
	}
	return &o, nil
}

func pages[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) pager.ListPageFunc {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}
