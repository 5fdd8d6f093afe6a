package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// objects are Kubernetes objects by kind and name, such as "DaemonSet nftproxy".
type objects map[string]runtime.Object

// get returns an object by kind and name.
func get[T runtime.Object](t *testing.T, all objects, key string) T {
	t.Helper()
	found, ok := all[key].(T)
	if !ok {
		t.Fatalf("no %s among %v", key, all.names())
	}
	return found
}

func (all objects) names() []string {
	var out []string
	for key := range all {
		out = append(out, key)
	}
	return out
}

// kinds knows the type of each kind that may be used, of Kubernetes and of Prometheus' operator.
var kinds = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// addDocuments decodes YAML documents into their types and adds them. Unknown kinds, unknown
// fields, repeated fields, and two objects of one name are errors.
func (all objects) addDocuments(data []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := all.addDocument(document); err != nil {
			return fmt.Errorf("%w in\n%s", err, document)
		}
	}
}

func (all objects) addDocument(document []byte) error {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil || string(data) == "null" {
		return err
	}
	obj, err := decode(data)
	if err != nil {
		return err
	}
	named, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	key := obj.GetObjectKind().GroupVersionKind().Kind + " " + named.GetName()
	if all[key] != nil {
		return fmt.Errorf("a second %s", key)
	}
	all[key] = obj
	return nil
}

func decode(data []byte) (runtime.Object, error) {
	var kind runtime.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return nil, err
	}
	obj, err := kinds.New(schema.FromAPIVersionAndKind(kind.APIVersion, kind.Kind))
	if err != nil {
		return nil, err
	}
	strict, err := json.UnmarshalStrict(data, obj)
	return obj, errors.Join(append(strict, err)...)
}
