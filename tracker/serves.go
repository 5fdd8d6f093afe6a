package tracker

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/model"
)

// IsKubernetes reports whether an object has the name of the Service default/kubernetes, which its EndpointSlice has
// too.
func IsKubernetes(obj metav1.Object) bool {
	return obj.GetNamespace() == metav1.NamespaceDefault && obj.GetName() == "kubernetes"
}

// ServiceServes returns what a Service serves (model.Losses): its first ClusterIP. It is empty for a Service that needs
// no proxy: without ports or ClusterIP, headless, or of type ExternalName.
func ServiceServes(obj *corev1.Service) string {
	ips := append([]string{obj.Spec.ClusterIP}, obj.Spec.ClusterIPs...)
	ip := slices.IndexFunc(ips, isIP)
	switch {
	case ip < 0 || len(obj.Spec.Ports) == 0 || !needsProxy(&obj.Spec):
		return ""
	case IsKubernetes(obj):
		return model.Kubernetes
	}
	return ips[ip]
}

// SliceServes returns what an EndpointSlice serves (model.Losses): its Service. It is empty for a slice without
// endpoints.
func SliceServes(obj *discoveryv1.EndpointSlice) string {
	service := obj.Labels[discoveryv1.LabelServiceName]
	if len(obj.Endpoints) == 0 || service == "" {
		return ""
	}
	return obj.Namespace + "/" + service
}

// NodeServes returns what a Node serves (model.Losses): itself.
func NodeServes(obj *corev1.Node) string { return obj.Name }
