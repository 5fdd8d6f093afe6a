package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// DecodeError says what is wrong with a manifest and where.
type DecodeError struct {
	// File is the name of the file in its directory.
	File string
	// Document counts the file's YAML documents from 1; Line is where it starts.
	Document, Line int
	// Item is the index in the items of a List, or -1.
	Item int
	// Object is the object's kind and name, as far as they are known.
	Object string
	// Err says what is wrong, with the path of the field.
	Err error
}

// Error returns for example `web.yaml: document 2 (line 14): Service default/web: unknown field "spec.prots"`.
func (e *DecodeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: document %d (line %d): ", e.File, e.Document, e.Line)
	if e.Item >= 0 {
		fmt.Fprintf(&b, "items[%d]: ", e.Item)
	}
	if e.Object != "" {
		fmt.Fprintf(&b, "%s: ", e.Object)
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *DecodeError) Unwrap() error { return e.Err }

// header is what tells a document's kind.
type header struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// decoded is what one document holds.
type decoded struct {
	objects []object
	// ignored is the objects of kinds that do not count here.
	ignored []groupKind
}

// decode decodes one document. Errors are DecodeErrors without File, Document and Line.
func decode(doc document) (decoded, error) {
	var d decoded
	data, err := toJSON(doc)
	if err != nil {
		return d, &DecodeError{Item: -1, Err: err}
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return d, nil
	}
	err = d.add(data, groupKind{}, -1)
	return d, err
}

// toJSON turns YAML into JSON. JSON passes as it is, since YAML parsers take much
// longer for it.
func toJSON(doc document) ([]byte, error) {
	if trimmed := bytes.TrimSpace(doc.text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed, nil
	}
	data, err := yaml.YAMLToJSONStrict(doc.text)
	if err == nil {
		return data, nil
	}
	// The parser counts lines from the start of what it is given. People count from the
	// start of the file, so let it fail once more with as many lines in front.
	padded := append(bytes.Repeat([]byte("\n"), doc.line-1), doc.text...)
	if _, again := yaml.YAMLToJSONStrict(padded); again != nil {
		err = again
	}
	return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// add decodes data, which is an object or a List of them. inherited is the kind of an
// item that does not say, as in a ServiceList straight from an API server.
func (d *decoded) add(data []byte, inherited groupKind, item int) error {
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return &DecodeError{Item: item, Err: err}
	}
	gk := groupKind{h.APIVersion, h.Kind}
	if gk == (groupKind{}) {
		gk = inherited
	}
	switch {
	case gk.kind == "":
		return &DecodeError{Item: item, Err: errors.New("no kind")}
	case gk.apiVersion == "":
		return &DecodeError{Item: item, Object: gk.kind, Err: errors.New("no apiVersion")}
	}
	if k, ok := kinds[gk]; ok {
		return d.addObject(data, k, &h, item)
	}
	if elements, isList := strings.CutSuffix(gk.kind, "List"); isList && item < 0 {
		return d.addItems(h.Items, groupKind{gk.apiVersion, elements})
	}
	d.ignored = append(d.ignored, gk)
	return nil
}

func (d *decoded) addItems(items []json.RawMessage, inherited groupKind) error {
	var errs []error
	for i, item := range items {
		errs = append(errs, d.add(item, inherited, i))
	}
	return errors.Join(errs...)
}

// addObject decodes data as an object of kind k.
func (d *decoded) addObject(data []byte, k kind, h *header, item int) error {
	name := id{k, h.Metadata.Namespace, h.Metadata.Name}
	if k.namespaced() && name.namespace == "" {
		name.namespace = defaultNamespace
	}
	if !k.namespaced() {
		name.namespace = ""
	}
	value := k.new()
	strict, err := kubejson.UnmarshalStrict(data, value)
	if err == nil {
		err = errors.Join(strict...)
	}
	if err == nil && name.name == "" {
		err = errors.New("metadata.name is missing")
	}
	if err != nil {
		return &DecodeError{Item: item, Object: name.String(), Err: oneLine(err)}
	}
	value.SetNamespace(name.namespace)
	d.objects = append(d.objects, object{name, value})
	return nil
}

// oneLine makes joined errors one line, as logs and terminals like it.
func oneLine(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var texts []string
	for _, e := range joined.Unwrap() {
		texts = append(texts, e.Error())
	}
	return errors.New(strings.Join(texts, "; "))
}
