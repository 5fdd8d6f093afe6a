// Package scale measures what the proxies of many nodes cost an API server, and the same through one
// server of the node-local API. Its benchmarks run the API server of package apiservertest in this
// process, which they measure, and the proxies in processes of their own.
package scale

import (
	"fmt"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeName(i int) string { return fmt.Sprint("node-", i) }

// managed returns managed fields: the API server's note about who set which fields, which it sends to everybody. The
// text has the length of the note that kube-controller-manager's EndpointSlices, or kubectl's Services, get.
func managed(fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
		Time: new(metav1.Now()), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}}
}

// service returns Service shop/web-i.
func service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprint("web-", i), Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprint("web-", i)},
			ManagedFields: managed(`{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprint("web-", i)},
			ClusterIP: clusterIP(i), ClusterIPs: []string{clusterIP(i)}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack), InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func clusterIP(i int) string { return fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255) }

// slice returns the EndpointSlice of web-i as the EndpointSlice controller writes it; its
// last endpoint is ready or not.
func slice(i, endpoints int, ready bool) *discoveryv1.EndpointSlice {
	name := fmt.Sprint("web-", i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name + "-x7k2p", GenerateName: name + "-",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"app.kubernetes.io/name": name,
			},
			Annotations:     map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: "00000000-0000-4000-8000-000000000000", Controller: new(true), BlockOwnerDeletion: new(true)}},
			ManagedFields:   managed(`{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"00000000-0000-4000-8000-000000000000\"}":{}}},"f:ports":{}}`),
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for e := range endpoints {
		up := ready || e < endpoints-1
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", e+1, i>>8&255, i&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(up), Serving: new(up), Terminating: new(false)},
			NodeName:   new(nodeName((i*endpoints + e) % 1000)), Zone: new("zone-a"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("%s-6c9f7b5d8-%05d", name, e), UID: "00000000-0000-4000-8000-000000000001"},
		})
	}
	return s
}

// node returns a Node with as many images as a kubelet reports that has some.
func node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: "zone-a"}}}
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", 200+i>>8, i&255)}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.%d.%d", i>>8, i&255)}}
	for image := range 30 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 26, Names: []string{
			fmt.Sprintf("registry.example/library/image-%d@sha256:%064d", image, image), fmt.Sprintf("registry.example/library/image-%d:v1.2.3", image),
		}})
	}
	return n
}

// fill gives a server services with endpoints each, and nodes.
func fill(b *testing.B, server *apiservertest.Server, services, endpoints, nodes int) {
	b.Helper()
	create := func(object apiservertest.Object) { lab.Create(b, server, object) }
	for i := range services {
		create(service(i))
		create(slice(i, endpoints, true))
	}
	for i := range nodes {
		create(node(i))
	}
}
