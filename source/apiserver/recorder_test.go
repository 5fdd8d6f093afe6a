package apiserver

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recorder is a sink that remembers what it holds, what it was ever given, and what it held when
// it was told that it had everything. Objects are known as "services/NAMESPACE/NAME".
type recorder struct {
	mu       sync.Mutex
	objects  map[string]metav1.Object
	ever     map[string]bool
	deleted  map[string]int
	syncs    int
	atSynced map[string]metav1.Object
	waiting  string
}

func newRecorder() *recorder {
	return &recorder{objects: map[string]metav1.Object{}, ever: map[string]bool{}, deleted: map[string]int{}}
}

func (r *recorder) set(resource string, obj metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := resource + "/" + obj.GetNamespace() + "/" + obj.GetName()
	r.objects[id] = obj
	r.ever[id] = true
}

func (r *recorder) remove(resource, namespace, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := resource + "/" + namespace + "/" + name
	delete(r.objects, id)
	r.deleted[id]++
}

func (r *recorder) SetService(o *corev1.Service)         { r.set("services", o) }
func (r *recorder) DeleteService(namespace, name string) { r.remove("services", namespace, name) }
func (r *recorder) SetNode(o *corev1.Node)               { r.set("nodes", o) }
func (r *recorder) DeleteNode(name string)               { r.remove("nodes", "", name) }
func (r *recorder) DeleteServiceCIDR(name string)        { r.remove("servicecidrs", "", name) }
func (r *recorder) DeleteEndpointSlice(ns, name string)  { r.remove("endpointslices", ns, name) }
func (r *recorder) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	r.set("servicecidrs", o)
}
func (r *recorder) SetEndpointSlice(o *discoveryv1.EndpointSlice) {
	r.set("endpointslices", o)
}

func (r *recorder) Waiting(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = reason
}

// waitsFor reports whether the source waits for something, and for nothing else.
func (r *recorder) waitsFor(reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting == reason
}

func (r *recorder) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs++
	r.atSynced = maps.Clone(r.objects)
}

func (r *recorder) synced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs > 0
}

func (r *recorder) get(id string) metav1.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objects[id]
}

// has returns a condition for eventually.
func (r *recorder) has(id string) func() bool { return func() bool { return r.get(id) != nil } }

func (r *recorder) lacks(id string) func() bool { return func() bool { return r.get(id) == nil } }

// labelled tells whether an object has arrived with a value of the label "step".
func (r *recorder) labelled(id, step string) func() bool {
	return func() bool {
		obj := r.get(id)
		return obj != nil && obj.GetLabels()["step"] == step
	}
}

func (r *recorder) seen(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ever[id]
}

func (r *recorder) deletions(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deleted[id]
}
