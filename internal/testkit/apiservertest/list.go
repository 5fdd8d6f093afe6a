package apiservertest

import (
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// list answers with everything that matches now, which is "not older than" any version that the
// client may have asked for. A limit is ignored, as the API lets a server do.
func (s *Server) list(w http.ResponseWriter, r *http.Request, t target, options *metav1.ListOptions) error {
	match, err := selection(t, options)
	if err != nil {
		return err
	}
	if err := s.checkReached(options.ResourceVersion); err != nil {
		return err
	}
	found, version := s.store.snapshot(t.resource, match)
	list, err := t.resource.newList()
	if err != nil {
		return err
	}
	items := make([]runtime.Object, len(found))
	for i, obj := range found {
		items[i] = obj
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	accessor.SetResourceVersion(formatVersion(version))
	writeObject(w, r, http.StatusOK, t.resource, list)
	return nil
}

// startVersion parses a resourceVersion; zero stands for "any".
func startVersion(text string) (uint64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(text))
	}
	return version, nil
}

// checkReached refuses a version that is still to come. A real server waits for it for some seconds first.
func (s *Server) checkReached(text string) error {
	version, err := startVersion(text)
	if err != nil {
		return err
	}
	if current, _ := s.store.versions(); version > current {
		return errVersionInFuture(version, current)
	}
	return nil
}

// selection returns which objects a request is about. A field that the real server cannot select
// by is refused as the real server refuses it: with 400, not with an empty list.
func selection(t target, options *metav1.ListOptions) (func(Object) bool, error) {
	byLabel, err := labels.Parse(options.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(options.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	example, err := t.resource.newObject()
	if err != nil {
		return nil, err
	}
	for _, requirement := range byField.Requirements() {
		if known := selectableFields(example); !known.Has(requirement.Field) {
			return nil, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return func(obj Object) bool {
		return (t.namespace == "" || t.namespace == obj.GetNamespace()) &&
			byLabel.Matches(labels.Set(obj.GetLabels())) && byField.Matches(selectableFields(obj))
	}, nil
}

func selectableFields(obj Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
	switch obj := obj.(type) {
	case *corev1.Service:
		set["spec.clusterIP"], set["spec.type"] = obj.Spec.ClusterIP, string(obj.Spec.Type)
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = obj.Spec.NodeName, string(obj.Status.Phase)
	}
	return set
}
