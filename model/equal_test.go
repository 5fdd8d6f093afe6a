package model

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestServicePortEqual(t *testing.T) {
	t.Run("every field counts, also one that is added later", func(t *testing.T) {
		kind := reflect.TypeFor[ServicePort]()
		for i := range kind.NumField() {
			var changed ServicePort
			set(t, kind.Field(i).Name, reflect.ValueOf(&changed).Elem().Field(i))
			if changed.Equal(&ServicePort{}) || !changed.Equal(&changed) {
				t.Errorf("field %s does not count", kind.Field(i).Name)
			}
		}
	})
	t.Run("of labels and annotations only the named ones count for EqualFor", func(t *testing.T) {
		keys := ServiceKeys{Labels: []string{"tier"}, Annotations: []string{"weight"}}
		port := func(labels, annotations map[string]string) *ServicePort {
			return &ServicePort{ServiceLabels: labels, ServiceAnnotations: annotations}
		}
		type texts = map[string]string
		base := port(texts{"tier": "front"}, texts{"weight": "3"})
		for _, tt := range []struct {
			name  string
			other *ServicePort
			want  bool
		}{
			{"the same", port(texts{"tier": "front"}, texts{"weight": "3"}), true},
			{"others differ", port(texts{"tier": "front", "x": "y"}, texts{"weight": "3", "x": "y"}), true},
			{"another label", port(texts{"tier": "back"}, texts{"weight": "3"}), false},
			{"another annotation", port(texts{"tier": "front"}, texts{"weight": "4"}), false},
			{"no label", port(nil, texts{"weight": "3"}), false},
			{"an empty one instead of none", port(texts{"tier": "front"}, texts{"weight": ""}), false},
		} {
			if got := base.EqualFor(tt.other, keys); got != tt.want {
				t.Errorf("%s: %t", tt.name, got)
			}
		}
		if a, b := port(texts{"tier": ""}, nil), port(nil, nil); a.EqualFor(b, keys) {
			t.Error("an empty label is said to equal none")
		}
		var none *ServicePort
		if !none.EqualFor(nil, keys) || none.EqualFor(base, keys) || base.EqualFor(nil, keys) {
			t.Error("nil equals a port, or does not equal nil")
		}
	})
	t.Run("nil equals nil alone", func(t *testing.T) {
		var none *ServicePort
		if !none.Equal(nil) || none.Equal(&ServicePort{}) || (&ServicePort{}).Equal(nil) {
			t.Error("nil equals a port, or does not equal nil")
		}
	})
}

// set gives field another value than its zero value.
func set(t *testing.T, name string, field reflect.Value) {
	t.Helper()
	switch field.Kind() {
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
	case reflect.Bool:
		field.SetBool(true)
	case reflect.Uint8, reflect.Uint16:
		field.SetUint(1)
	case reflect.Int64:
		field.SetInt(1)
	case reflect.String:
		field.SetString("x")
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	case reflect.Map:
		field.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case reflect.Struct:
		switch v := field.Addr().Interface().(type) {
		case *PortID:
			v.Port = "x"
		case *netip.Addr:
			*v = netip.MustParseAddr("10.0.0.1")
		default:
			t.Fatalf("field %s: teach this test about %s", name, field.Type())
		}
	default:
		t.Fatalf("field %s: teach this test about %s", name, field.Kind())
	}
}

func TestServicePortAddresses(t *testing.T) {
	t.Run("every list counts, also one that is added later", func(t *testing.T) {
		kind := reflect.TypeFor[ServicePort]()
		for i := range kind.NumField() {
			field := kind.Field(i)
			var port ServicePort
			list := reflect.ValueOf(&port).Elem().Field(i)
			switch {
			case field.Type == reflect.TypeFor[map[string]string]():
				list.Set(reflect.ValueOf(map[string]string{"key": strings.Repeat("x", 3*64)}))
			case field.Type.Kind() == reflect.Slice:
				expectFixedSize(t, field.Name, field.Type.Elem())
				list.Set(reflect.MakeSlice(field.Type, 3, 3))
			default:
				expectFixedSize(t, field.Name, field.Type)
				continue
			}
			if got := port.Addresses(); got != 3 {
				t.Errorf("%s with 3 elements counts as %d: add it to Addresses", field.Name, got)
			}
		}
	})
}

// expectFixedSize fails for a type whose values can differ in size: whoever sends them can fill a client's memory.
// The names in a PortID, an EndpointInfo, a Creation and an AppProtocol have limits of their own.
func expectFixedSize(t *testing.T, name string, kind reflect.Type) {
	t.Helper()
	switch kind {
	case reflect.TypeFor[PortID](), reflect.TypeFor[*Creation](), reflect.TypeFor[EndpointInfo](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.AddrPort](), reflect.TypeFor[netip.Prefix]():
		return
	}
	if name == "AppProtocol" {
		return
	}
	switch kind.Kind() {
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Int64:
	case reflect.Struct:
		for i := range kind.NumField() {
			expectFixedSize(t, name+"."+kind.Field(i).Name, kind.Field(i).Type)
		}
	default:
		t.Errorf("field %s has type %s: count it in Addresses, and teach this test", name, kind)
	}
}
