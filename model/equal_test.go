package model

import (
	"net/netip"
	"reflect"
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
			if field.Type.Kind() != reflect.Slice {
				expectFixedSize(t, field.Name, field.Type)
				continue
			}
			expectFixedSize(t, field.Name, field.Type.Elem())
			var port ServicePort
			list := reflect.ValueOf(&port).Elem().Field(i)
			list.Set(reflect.MakeSlice(field.Type, 3, 3))
			if got := port.Addresses(); got != 3 {
				t.Errorf("%s with 3 elements counts as %d: add it to Addresses", field.Name, got)
			}
		}
	})
}

// expectFixedSize fails for a type whose values can differ in size: whoever sends them can fill a client's memory.
// The names in a PortID have a limit of their own.
func expectFixedSize(t *testing.T, name string, kind reflect.Type) {
	t.Helper()
	switch kind {
	case reflect.TypeFor[PortID](), reflect.TypeFor[netip.Addr](), reflect.TypeFor[netip.AddrPort](), reflect.TypeFor[netip.Prefix]():
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
