package config

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// toJSON converts a YAML or JSON document. A field that is there twice is no error, and the last one counts.
func toJSON(data []byte) (document []byte, repeated []string, err error) {
	document, err = yaml.YAMLToJSONStrict(data)
	if err == nil {
		return document, nil, nil
	}
	lenient, lenientErr := yaml.YAMLToJSON(data)
	if lenientErr != nil {
		return nil, nil, fmt.Errorf("%s; must be a YAML or JSON document", oneLine(lenientErr))
	}
	for _, line := range strings.Split(err.Error(), "\n")[1:] {
		repeated = append(repeated, strings.TrimSpace(line)+"; the last one counts, remove the others")
	}
	return lenient, repeated, nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// decode reads a JSON document into a new T. Fields that T does not have are returned by their paths.
func decode[T any](document []byte) (out *T, unknown []string, err error) {
	out = new(T)
	strict, err := json.UnmarshalStrict(document, out, json.DisallowUnknownFields)
	if err != nil {
		return nil, nil, wrongFields[T](document, err)
	}
	for _, problem := range strict {
		path := problem.Error()
		if e := (json.FieldError)(nil); errors.As(problem, &e) {
			path = e.FieldPath()
		}
		unknown = append(unknown, path)
	}
	return out, unknown, nil
}

// wrongFields says which fields have values that T cannot take. A decoder names the first field at most, and none of a
// type that decodes itself (durations do). Therefore every value is decoded once more, alone.
func wrongFields[T any](document []byte, err error) error {
	var tree any
	if json.UnmarshalCaseSensitivePreserveInts(document, &tree) != nil {
		return err
	}
	var wrong []error
	eachLeaf(tree, nil, func(path []string, alone any) {
		data, encodeErr := gojson.Marshal(alone)
		if encodeErr != nil {
			return
		}
		if err := json.UnmarshalCaseSensitivePreserveInts(data, new(T)); err != nil {
			wrong = append(wrong, wrongField(strings.Join(path, "."), err))
		}
	})
	if len(wrong) == 0 {
		return err
	}
	return joinLine(wrong)
}

// eachLeaf visits each value of a document that is not an object, with its path and a document of nothing else.
func eachLeaf(tree any, path []string, visit func(path []string, alone any)) {
	object, ok := tree.(map[string]any)
	if !ok || len(object) == 0 {
		alone := tree
		for _, name := range slices.Backward(path) {
			alone = map[string]any{name: alone}
		}
		visit(path, alone)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		eachLeaf(object[name], append(slices.Clip(path), name), visit)
	}
}

// wrongField describes the error that a field's value, decoded alone, caused.
func wrongField(path string, err error) error {
	var typeErr *gojson.UnmarshalTypeError
	if !errors.As(err, &typeErr) {
		return fmt.Errorf("%s: %s; must be %s", path, oneLine(err), describeWanted(path, nil))
	}
	value := typeErr.Value
	switch value {
	case "object":
		value = "mapping"
		if typeErr.Field != "" {
			path = typeErr.Field // the mapping's, not that of what is in it
		}
	case "array":
		value = "list"
	}
	if path == "" {
		path = "document"
	}
	return fmt.Errorf("%s: is a %s; must be %s", path, value, describeWanted(path, typeErr.Type))
}

// describeWanted says what a field takes. Durations and sizes decode themselves, from strings.
func describeWanted(path string, t reflect.Type) string {
	for _, duration := range []string{"Period", "Timeout", "Frequency"} {
		if strings.HasSuffix(path, duration) {
			return "a duration such as 30s or 1h30m"
		}
	}
	if t == nil || strings.HasSuffix(path, "BufferSize") {
		return "a size such as 64Ki"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string, in quotes if it looks like something else"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping of names to values"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number of type " + t.String()
}

// joinLine makes one error, and one line, of several.
func joinLine(errs []error) error {
	var texts []string
	for _, err := range errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return errors.New(strings.Join(texts, "; "))
}

// unknownFields describes fields that a document has and its version does not. otherNames
// translates from the other version.
func unknownFields(paths []string, otherNames Names) (out []string) {
	for _, path := range paths {
		advice := "remove it or correct its name"
		if name := otherNames[path]; name != "" {
			advice = "this version calls it " + name
		}
		out = append(out, fmt.Sprintf("%s: unknown field; %s", path, advice))
	}
	return out
}

// fieldErrors makes one error of a list, with the fields' names as the user knows them.
func fieldErrors(errs field.ErrorList, names Names) error {
	if len(errs) == 0 {
		return nil
	}
	var renamed []error
	for _, err := range errs {
		err.Field = names.nameOf(err.Field)
		renamed = append(renamed, err)
	}
	return joinLine(renamed)
}
