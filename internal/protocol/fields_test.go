package protocol_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nftproxy/nftproxy/internal/protocol"
	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// notZero sets v to a value that is valid and not the zero value. It fails for a type that
// it does not know: a new field may need one.
func notZero(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case string:
		v.SetString("web")
	case bool:
		v.SetBool(true)
	case uint16:
		v.SetUint(1234)
	case time.Duration:
		v.SetInt(int64(90 * time.Second))
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(90, 0).UTC()))
	case model.Protocol:
		v.Set(reflect.ValueOf(model.SCTP))
	case model.Family:
		v.Set(reflect.ValueOf(model.IPv6))
	case map[string]string:
		v.Set(reflect.ValueOf(map[string]string{"example.com/key": "value"}))
	case model.ServiceType:
		v.Set(reflect.ValueOf(model.TypeLoadBalancer))
	case model.EndpointInfo:
		v.Set(reflect.ValueOf(model.NewEndpointInfo("web-0", "zone-a")))
	case model.TrafficPolicy:
		v.Set(reflect.ValueOf(model.PolicyLocal))
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("fd00::1")))
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("[fd00::1]:80")))
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("fd00::/64")))
	default:
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			notZero(t, path, v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				notZero(t, path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			notZero(t, path+"[0]", v.Index(0))
		default:
			t.Fatalf("%s has type %s: teach notZero a value of it", path, v.Type())
		}
	}
}

func TestEncode(t *testing.T) {
	t.Run("keeps every field", testEncodeKeepsEveryField)
}

// testEncodeKeepsEveryField fails for a field of the model that the messages do not carry.
func testEncodeKeepsEveryField(t *testing.T) {
	// carried encodes and decodes a port as a client gets it.
	carried := func(t *testing.T, port *model.ServicePort) *model.ServicePort {
		t.Helper()
		data, err := proto.Marshal(protocol.EncodePort(port))
		if err != nil {
			t.Fatal(err)
		}
		var message nodelocalv1.ServicePort
		if err := proto.Unmarshal(data, &message); err != nil {
			t.Fatal(err)
		}
		got, err := protocol.DecodePort(&message)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	var full model.ServicePort
	notZero(t, "ServicePort", reflect.ValueOf(&full).Elem())
	// An endpoint is at one place.
	info := model.NewEndpointInfo("web-0", "zone-a")
	for _, place := range []model.Endpoint{{Local: true}, {Remote: true}, {}, {Info: info}, {Info: model.NewEndpointInfo("", "zone-a")}} {
		t.Run(fmt.Sprintf("a port with everything, endpoints %+v", place), func(t *testing.T) {
			port := full
			for _, list := range []*[]model.Endpoint{&port.Cluster, &port.Local} {
				place.AddrPort = full.Cluster[0].AddrPort
				*list = []model.Endpoint{place}
			}
			if diff := cmp.Diff(&port, carried(t, &port), sameAddrs); diff != "" {
				t.Errorf("(-sent +received):\n%s", diff)
			}
		})
	}
	t.Run("a node", func(t *testing.T) {
		var want model.Node
		notZero(t, "Node", reflect.ValueOf(&want).Elem())
		got, err := protocol.DecodeNode(protocol.EncodeNode(&want))
		if diff := cmp.Diff(&want, got, sameAddrs); err != nil || diff != "" {
			t.Errorf("%v (-sent +received):\n%s", err, diff)
		}
	})
	t.Run("an endpoint has no field but these", func(t *testing.T) {
		// The places above stand in for a value of each field.
		if n := reflect.TypeFor[model.Endpoint]().NumField(); n != 4 {
			t.Errorf("%d fields, want AddrPort, Local, Remote and Info: send the new one, and extend this test", n)
		}
	})
}
