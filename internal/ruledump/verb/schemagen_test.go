package verb

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nftproxy/nftproxy/internal/ruledump"
)

var update = flag.Bool("update", false, "rewrite schema.json, and the options in docs/ruledump.md")

// documents are what the commands write, by kind.
var documents = []struct {
	kind, writtenBy string
	value           any
}{
	{"Ruleset", "A dump: live -o json, compile -o json. ruledump reads the field netlink of each table; the rest of a table is for people, in nft's syntax.", ruledump.Dump{}},
	{"Check", "check -o json", Check{}},
	{"CheckTable", "check --collect -o json", CheckTable{}},
	{"Services", "services -o json", Services{}},
	{"Explanation", "explain -o json", Explanation{}},
	{"Difference", "diff -o json", Difference{}},
	{"Statistics", "stats -o json", Statistics{}},
	{"Preflight", "preflight -o json", Preflight{}},
	{"PreflightTable", "preflight --collect -o json", PreflightTable{}},
	{"Trace", "trace -o json, one a line", tracedPacket{}},
	{"Change", "watch -o json, one a line", change{}},
	{"Refusal", "watch --refused -o json, one a line", refusal{}},
	{"Connections", "connections -o json", Connections{}},
	{"ConnectionEvent", "connections -w -o json, one a line", flowEvent{}},
	{"Report", "report.json in a report: report", Report{}},
	{"Rates", "top -o json, one a line", Rates{}},
}

// TestGeneratedSchema compares schema.json with the structs that are written as JSON.
func TestGeneratedSchema(t *testing.T) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(generateSchema(t)); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.json", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(schema), b.String()); diff != "" {
		t.Errorf("schema.json (-file +structs); `make golden` accepts the change:\n%s", diff)
	}
}

type object = map[string]any

// generator makes the schema of types. It keeps each struct in defs, once.
type generator struct {
	t      *testing.T
	defs   object
	types  map[string]reflect.Type // of defs
	source goSource
}

func generateSchema(t *testing.T) object {
	g := generator{t, object{}, map[string]reflect.Type{}, parseSource(t, "..", ".", "../../../evaluator")}
	var kinds []any
	for _, d := range documents {
		kinds = append(kinds, object{"$ref": "#/$defs/" + d.kind})
		o := g.structSchema(reflect.TypeOf(d.value))
		o["description"] = d.writtenBy
		properties := o["properties"].(object)
		properties["apiVersion"], properties["kind"] = object{"const": ruledump.APIVersion}, object{"const": d.kind}
		g.defs[d.kind] = o
	}
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://nftproxy.invalid/ruledump/v1.json",
		"title": "JSON that ruledump writes", "oneOf": kinds, "$defs": g.defs,
	}
}

func (g *generator) structSchema(t reflect.Type) object {
	properties, required := object{}, []string{}
	g.addFields(t, true, properties, &required)
	o := object{"type": "object", "properties": properties}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

// addFields adds the fields of a struct as encoding/json writes them. The fields of an embedded pointer may be absent.
func (g *generator) addFields(t reflect.Type, present bool, properties object, required *[]string) {
	for f := range t.Fields() {
		tag, written := f.Tag.Lookup("json")
		switch {
		case f.Anonymous && !written && f.Type.Kind() == reflect.Pointer:
			g.addFields(f.Type.Elem(), false, properties, required)
			continue
		case f.Anonymous && !written:
			g.addFields(f.Type, present, properties, required)
			continue
		case !f.IsExported(), tag == "-":
			continue
		case !written:
			g.t.Errorf("%s.%s has no tag json", t, f.Name)
		}
		name, options, _ := strings.Cut(tag, ",")
		o := g.schemaOf(f.Type)
		if hints := f.Tag.Get("jsonschema"); hints == "nullable" {
			o = object{"anyOf": []any{o, object{"type": "null"}}}
		} else if hints != "" {
			text := o
			if items, isList := o["items"]; isList {
				text = items.(object)
			}
			text["enum"] = strings.Split(strings.TrimPrefix(hints, "enum="), ",enum=")
		}
		if text := g.source.comments[sourceName(t)+"."+f.Name]; text != "" {
			text = strings.TrimPrefix(text, f.Name+": ")
			if rest, begins := strings.CutPrefix(text, f.Name+" "); begins {
				text = name + " " + rest
			}
			o["description"] = text
		}
		properties[name] = o
		if present && options == "" {
			*required = append(*required, name)
		}
	}
}

// closed are the types of which all values are constants.
var closed = []reflect.Type{reflect.TypeFor[Reason](), reflect.TypeFor[SourceReason](), reflect.TypeFor[level](), reflect.TypeFor[remarkKind]()}

func (g *generator) schemaOf(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return g.schemaOf(t.Elem())
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	case slices.Contains(closed, t):
		return object{"type": "string", "enum": g.source.constants[sourceName(t)]}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int32:
		return object{"type": "integer"}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schemaOf(t.Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": g.schemaOf(t.Elem())}
	case reflect.Struct:
		return g.definition(t)
	}
	g.t.Fatalf("%s has no schema", t)
	return nil
}

func (g *generator) definition(t reflect.Type) object {
	name, _, _ := strings.Cut(t.Name(), "[")
	name = strings.ToUpper(name[:1]) + name[1:]
	switch known := g.types[name]; {
	case known == nil:
		g.types[name] = t
		o := g.structSchema(t)
		if text := g.source.comments[sourceName(t)]; text != "" {
			o["description"] = strings.ToUpper(text[:1]) + text[1:] // the comment begins with the type's name
		}
		g.defs[name] = o
	case known != t:
		g.t.Errorf("both %s and %s are %s", known, t, name)
	}
	return object{"$ref": "#/$defs/" + name}
}

// sourceName is the name of a type in goSource.
func sourceName(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	return t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:] + "." + name
}

// goSource has the doc comments of types and fields, and the constants of types: "verb.level", "verb.finding.Check".
type goSource struct {
	comments  map[string]string
	constants map[string][]string
}

func parseSource(t *testing.T, dirs ...string) goSource {
	t.Helper()
	s := goSource{map[string]string{}, map[string][]string{}}
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			s.add(file)
		}
	}
	for _, values := range s.constants {
		slices.Sort(values)
	}
	return s
}

func (s *goSource) add(file *ast.File) {
	for _, d := range file.Decls {
		declaration, isGeneric := d.(*ast.GenDecl)
		if !isGeneric {
			continue
		}
		for _, spec := range declaration.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.addType(file.Name.Name+"."+spec.Name.Name, declaration.Doc, spec.Type)
			case *ast.ValueSpec:
				s.addConstant(file.Name.Name, spec)
			}
		}
	}
}

func (s *goSource) addType(name string, doc *ast.CommentGroup, of ast.Expr) {
	structure, isStruct := of.(*ast.StructType)
	if !isStruct {
		return
	}
	s.comments[name] = unwrapped(doc)
	for _, f := range structure.Fields.List {
		for _, field := range f.Names {
			s.comments[name+"."+field.Name] = unwrapped(f.Doc) + unwrapped(f.Comment)
		}
	}
}

func (s *goSource) addConstant(pkg string, spec *ast.ValueSpec) {
	name, named := spec.Type.(*ast.Ident)
	if !named {
		return
	}
	for _, value := range spec.Values {
		if literal, isLiteral := value.(*ast.BasicLit); isLiteral && literal.Kind == token.STRING {
			text, _ := strconv.Unquote(literal.Value)
			s.constants[pkg+"."+name.Name] = append(s.constants[pkg+"."+name.Name], text)
		}
	}
}

func unwrapped(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
