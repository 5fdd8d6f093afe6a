package flows

import (
	"encoding/json"
	"fmt"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Objects decodes manifests: YAML documents, each an object or a list of objects.
func Objects(manifests []byte) (objects []apiservertest.Object, err error) {
	for i, document := range documents(manifests) {
		data, err := yaml.YAMLToJSON(document)
		if err == nil {
			objects, err = appendObjects(objects, data)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	return objects, nil
}

func appendObjects(objects []apiservertest.Object, data []byte) ([]apiservertest.Object, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	for i, item := range list.Items {
		var err error
		if objects, err = appendObjects(objects, item); err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	if list.Items != nil || string(data) == "null" {
		return objects, nil
	}
	decoded, err := runtime.Decode(apiservertest.Codecs.UniversalDeserializer(), data)
	if err != nil {
		return nil, err
	}
	object, ok := decoded.(apiservertest.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no name", decoded)
	}
	return append(objects, object), nil
}
