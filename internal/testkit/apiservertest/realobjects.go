package apiservertest

import (
	"context"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// requestTimeout bounds a request about an object.
const requestTimeout = 30 * time.Second

// Create stores an object with its status, and makes the namespace that it needs. It returns what the server made of it.
// A ServiceCIDR that exists stays as it is: the server has one of its own, which cannot go.
func (r *Real) Create(obj Object) (Object, error) {
	created, err := r.send(obj, http.MethodPost, "")
	if apierrors.IsNotFound(err) && obj.GetNamespace() != "" {
		if _, err := r.send(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: obj.GetNamespace()}}, http.MethodPost, ""); err != nil {
			return nil, err
		}
		created, err = r.send(obj, http.MethodPost, "")
	}
	if _, isRange := obj.(*networkingv1.ServiceCIDR); isRange && apierrors.IsAlreadyExists(err) {
		return obj, nil
	}
	if err != nil {
		return nil, err
	}
	return r.setStatus(obj, created)
}

// Update replaces an object and its status.
func (r *Real) Update(obj Object) (Object, error) {
	stored, err := r.send(obj, http.MethodGet, "")
	if err != nil {
		return nil, err
	}
	sent := obj.DeepCopyObject().(Object)
	sent.SetResourceVersion(stored.GetResourceVersion())
	updated, err := r.send(sent, http.MethodPut, "")
	if err != nil {
		return nil, err
	}
	return r.setStatus(obj, updated)
}

// Delete removes an object; ServiceCIDRs stay.
func (r *Real) Delete(obj Object) error {
	if _, isRange := obj.(*networkingv1.ServiceCIDR); isRange {
		return nil
	}
	_, err := r.send(obj, http.MethodDelete, "")
	return err
}

// WriteKubeconfig writes a kubeconfig for the server and the token.
func (r *Real) WriteKubeconfig(path string) error {
	text, err := os.ReadFile(r.Kubeconfig)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// Close does nothing: the programs end with the test.
func (r *Real) Close() {}

// setStatus stores the status of an object, which the server leaves out when the object itself is written.
func (r *Real) setStatus(obj, stored Object) (Object, error) {
	switch obj := obj.(type) {
	case *corev1.Service:
		if len(obj.Status.LoadBalancer.Ingress) == 0 && len(stored.(*corev1.Service).Status.LoadBalancer.Ingress) == 0 {
			return stored, nil
		}
		stored.(*corev1.Service).Status = obj.Status
	case *corev1.Node:
		stored.(*corev1.Node).Status = obj.Status
	default:
		return stored, nil
	}
	return r.send(stored, http.MethodPut, "status")
}

// send sends one request about an object or a part of it, and returns the object of the answer.
func (r *Real) send(obj Object, method, subresource string) (Object, error) {
	res, err := resourceOf(obj)
	if _, isNamespace := obj.(*corev1.Namespace); isNamespace {
		res, err = &resource{kind: corev1.SchemeGroupVersion.WithKind("Namespace"), plural: "namespaces"}, nil
	}
	if err != nil {
		return nil, err
	}
	version := res.kind.GroupVersion()
	config := r.Config()
	config.GroupVersion, config.APIPath, config.QPS = &version, "/apis", -1
	config.NegotiatedSerializer, config.WarningHandler = Codecs.WithoutConversion(), rest.NoWarnings{}
	if version.Group == "" {
		config.APIPath = "/api"
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	request := client.Verb(method).NamespaceIfScoped(obj.GetNamespace(), res.namespaced).Resource(res.plural)
	if method != http.MethodPost {
		request = request.Name(obj.GetName())
	}
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	if method == http.MethodPost || method == http.MethodPut {
		request = request.Body(obj)
	}
	answer, err := res.newObject()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if method == http.MethodDelete { // some kinds are answered with a Status
		return obj, request.Do(ctx).Error()
	}
	return answer, request.Do(ctx).Into(answer)
}
