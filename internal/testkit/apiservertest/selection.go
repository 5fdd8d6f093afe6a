package apiservertest

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

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
	if svc, ok := obj.(*corev1.Service); ok {
		set["spec.clusterIP"] = svc.Spec.ClusterIP
		set["spec.type"] = string(svc.Spec.Type)
	}
	return set
}
