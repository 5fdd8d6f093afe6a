package manifests

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is one YAML or JSON document of a file.
type document struct {
	// number is the document's number in its file, line the number of its first line. Both count from 1.
	number, line int
	text         []byte
}

// documents splits a file at lines that begin with "---", which YAML forbids inside any document, even in a block of
// text. The text behind the dashes belongs to the document ("--- {a: 1}"); apimachinery's reader would lose this
// document silently. Documents without content are omitted, but counted.
func documents(file []byte) (docs []document) {
	file = bytes.TrimPrefix(file, []byte("\ufeff"))
	doc := document{number: 1, line: 1}
	start, pos, line := 0, 0, 0
	end := func() {
		if doc.text = file[start:pos]; hasContent(doc.text) {
			docs = append(docs, doc)
			doc.number++
		} else if start > 0 {
			doc.number++
		}
	}
	for text := range bytes.Lines(file) {
		line++
		if rest, ok := bytes.CutPrefix(text, []byte("---")); ok &&
			(len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0]))) {
			end()
			start, doc.line = pos+len("---"), line
		}
		pos += len(text)
	}
	end()
	return docs
}

// hasContent reports whether a document holds more than blank lines and comments.
func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("...")) {
			return true
		}
	}
	return false
}

// header has a document's kind.
type header struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// decoded is the content of a document or a file.
type decoded struct {
	objects []object
	// ignored holds the ignored kinds.
	ignored []groupKind
}

// decodeFile decodes all documents of a file, on all processors, because decoding is the whole cost of a large
// directory. An example of its errors: `web.yaml: document 2 (line 14): Service default/web: unknown field
// "spec.prots"`.
func decodeFile(name string, text []byte) (all decoded, errs []error) {
	docs := documents(text)
	results, failures := make([]decoded, len(docs)), make([][]error, len(docs))
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), 1+len(docs)/64) // too few documents are not worth a goroutine
	for first := range workers {
		wg.Go(func() {
			for i := first; i < len(docs); i += workers {
				failures[i] = results[i].decode(docs[i])
			}
		})
	}
	wg.Wait()
	for i, doc := range docs {
		all.objects = append(all.objects, results[i].objects...)
		all.ignored = append(all.ignored, results[i].ignored...)
		for _, err := range failures[i] {
			errs = append(errs, fmt.Errorf("%s: document %d (line %d): %w", name, doc.number, doc.line, err))
		}
	}
	return all, errs
}

// decode decodes one document.
func (d *decoded) decode(doc document) []error {
	data, err := toJSON(doc)
	if err != nil {
		return []error{err}
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil
	}
	return d.add(data, nil)
}

// toJSON turns YAML into JSON. It returns JSON as it is, because a YAML parser takes much longer.
func toJSON(doc document) ([]byte, error) {
	if trimmed := bytes.TrimSpace(doc.text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed, nil
	}
	data, err := yaml.YAMLToJSONStrict(doc.text)
	if err == nil {
		return data, nil
	}
	// Repeated with the preceding lines in front, so that the error counts lines from the start of the file.
	padded := append(bytes.Repeat([]byte("\n"), doc.line-1), doc.text...)
	if _, again := yaml.YAMLToJSONStrict(padded); again != nil {
		err = again
	}
	return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// add decodes data, an object or a List. inherited is the kind of a List's items without a kind, as in a ServiceList
// from an API server.
func (d *decoded) add(data []byte, inherited *groupKind) (errs []error) {
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return []error{err}
	}
	gk := groupKind{h.APIVersion, h.Kind}
	if gk == (groupKind{}) && inherited != nil {
		gk = *inherited
	}
	switch {
	case gk.kind == "":
		return []error{errors.New("no kind")}
	case gk.apiVersion == "":
		return []error{fmt.Errorf("%s: no apiVersion", gk.kind)}
	}
	if k := kindOf(gk); k >= 0 {
		if err := d.addObject(data, k, &h); err != nil {
			return []error{err}
		}
		return nil
	}
	if elements, isList := strings.CutSuffix(gk.kind, "List"); isList && inherited == nil {
		for i, item := range h.Items {
			for _, err := range d.add(item, &groupKind{gk.apiVersion, elements}) {
				errs = append(errs, fmt.Errorf("items[%d]: %w", i, err))
			}
		}
		return errs
	}
	d.ignored = append(d.ignored, gk)
	return nil
}

// addObject decodes data as an object of a kind. Its error is one line.
func (d *decoded) addObject(data []byte, k int, h *header) error {
	name := id{kind: k, name: h.Metadata.Name}
	if kinds[k].namespaced {
		name.namespace = cmp.Or(h.Metadata.Namespace, metav1.NamespaceDefault) // like kubectl
	}
	value := kinds[k].new()
	strict, err := kubejson.UnmarshalStrict(data, value)
	switch {
	case err != nil:
	case len(strict) > 0:
		err = errors.New(strings.ReplaceAll(errors.Join(strict...).Error(), "\n", "; "))
	case name.name == "":
		err = errors.New("metadata.name is missing")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	value.SetNamespace(name.namespace)
	d.objects = append(d.objects, object{name, value})
	return nil
}
