package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/nodelocal/server"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// version is the messages of one version of the API, as a program has them that was built from it.
type version struct{ protoreflect.FileDescriptor }

// released is the last released version, with which make check-api compares.
func released(t *testing.T) version {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "v1", "released.binpb"))
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		t.Fatal(err)
	}
	file, err := files.FindFileByPath(nodelocalv1.File_nodelocal_v1_nodelocal_proto.Path())
	if err != nil {
		t.Fatal(err)
	}
	return version{file}
}

// smallest is a version that has nothing but what a program cannot do without.
func smallest(t *testing.T) version {
	t.Helper()
	needed := map[string][]string{
		"WatchRequest": {"node", "last_seen"},
		"GetRequest":   {"node"},
		"Position":     {"instance", "revision"},
		"Update":       {"full", "set", "delete", "sync"},
		"Sync":         {"position"},
		"PortID":       {"service", "family"},
		"ServicePort":  {"id", "cluster"},
		"Endpoint":     {"address"},
	}
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("smallest.proto"), Package: proto.String("nftproxy.nodelocal.v1"), Syntax: proto.String("proto3")}
	current := protodesc.ToFileDescriptorProto(nodelocalv1.File_nodelocal_v1_nodelocal_proto)
	file.EnumType = current.EnumType
	for _, message := range current.MessageType {
		fields := needed[message.GetName()]
		if fields == nil {
			continue
		}
		less := &descriptorpb.DescriptorProto{Name: message.Name}
		for _, field := range message.Field {
			for _, name := range fields {
				if field.GetName() == name {
					less.Field = append(less.Field, field)
				}
			}
		}
		file.MessageType = append(file.MessageType, less)
	}
	built, err := protodesc.NewFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return version{built}
}

func (v version) message(name protoreflect.Name) *dynamicpb.Message {
	return dynamicpb.NewMessage(v.Messages().ByName(name))
}

// field returns a field of a message by the path to it.
func field(m protoreflect.Message, path ...protoreflect.Name) (value protoreflect.Value) {
	for _, name := range path {
		value = m.Get(m.Descriptor().Fields().ByName(name))
		if inner, ok := value.Interface().(protoreflect.Message); ok {
			m = inner
		}
	}
	return value
}

// reader follows a server as a program of a version does.
type reader struct {
	t      *testing.T
	stream grpc.ClientStream
	// endpoints is the addresses of each Service's endpoints.
	endpoints map[string]string
	// unknown says that something came that the version does not have.
	unknown bool
	version
}

func (v version) watch(t *testing.T, b *testServer, request proto.Message) *reader {
	t.Helper()
	conn := connect(t, b.address)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, nodelocalv1.NodeLocal_Watch_FullMethodName)
	if err == nil {
		err = stream.SendMsg(request)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return &reader{t: t, stream: stream, endpoints: map[string]string{}, version: v}
}

// batch reads a batch and returns whether it was full, and the position after it.
func (r *reader) batch() (full bool, position protoreflect.Message) {
	r.t.Helper()
	for {
		update := r.message("Update")
		if err := r.stream.RecvMsg(update); err != nil {
			r.t.Fatal(err)
		}
		if field(update, "full").Bool() {
			full, r.endpoints = true, map[string]string{}
		}
		for i, list := 0, field(update, "set").List(); i < list.Len(); i++ {
			port := list.Get(i).Message()
			text := ""
			for j, endpoints := 0, field(port, "cluster").List(); j < endpoints.Len(); j++ {
				text += field(endpoints.Get(j).Message(), "address").String() + " "
			}
			r.endpoints[field(port, "id", "service").String()] = text
			r.unknown = r.unknown || len(port.GetUnknown()) > 0
		}
		for i, list := 0, field(update, "delete").List(); i < list.Len(); i++ {
			delete(r.endpoints, field(list.Get(i).Message(), "service").String())
		}
		if sync := update.Descriptor().Fields().ByName("sync"); update.Has(sync) {
			end := update.Get(sync).Message()
			r.unknown = r.unknown || len(end.GetUnknown()) > 0
			return full, field(end, "position").Message()
		}
	}
}

// request asks for a node, after a position if there is one, in the words of the version.
func (v version) request(node string, seen protoreflect.Message) *dynamicpb.Message {
	request := v.message("WatchRequest")
	fields := request.Descriptor().Fields()
	request.Set(fields.ByName("node"), protoreflect.ValueOfString(node))
	if seen != nil {
		request.Set(fields.ByName("last_seen"), protoreflect.ValueOfMessage(seen))
	}
	return request
}

// testServerOfOlderClients has programs follow the server that were built from older versions of the API.
func testServerOfOlderClients(t *testing.T) {
	for _, tc := range []struct {
		name string
		version
	}{{"the released version", released(t)}, {"a version without most fields", smallest(t)}} {
		t.Run(tc.name, func(t *testing.T) {
			tr := servingTracker(100)
			fill(tr, 3, 2)
			tr.Synced()
			b := newTestServer(t, tr, server.Options{})
			change := func(i int) {
				s := slice(i, 1, 0)
				s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
				tr.SetEndpointSlice(s)
			}
			expect := func(r *reader, want map[string]string) {
				t.Helper()
				if fmt.Sprint(r.endpoints) != fmt.Sprint(want) {
					t.Errorf("it has %v, want %v", r.endpoints, want)
				}
			}
			two := func(i int) string { return fmt.Sprintf("10.1.0.%d 10.2.0.%d ", i, i) }
			r := tc.watch(t, b, tc.request("node-1", nil))
			if full, _ := r.batch(); !full {
				t.Error("the first batch is not full")
			}
			expect(r, map[string]string{"web-0": two(0), "web-1": two(1), "web-2": two(2)})
			change(1)
			tr.DeleteService("default", "web-2")
			_, seen := r.batch()
			for r.endpoints["web-2"] != "" {
				_, seen = r.batch()
			}
			expect(r, map[string]string{"web-0": two(0), "web-1": "10.1.0.1 "})
			if tc.name != "the released version" && !r.unknown {
				t.Error("nothing came that this version does not know")
			}
			t.Run("and resume", func(t *testing.T) {
				change(0)
				again := tc.watch(t, b, tc.request("node-1", seen))
				if full, _ := again.batch(); full {
					t.Error("everything was sent again")
				}
				expect(again, map[string]string{"web-0": "10.1.0.0 "})
			})
		})
	}
}

// testServerOfLaterClients has a program follow the server whose requests have fields that the server does not know.
func testServerOfLaterClients(t *testing.T) {
	later := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 200, protowire.BytesType), "later"))
	}
	tr := servingTracker(100)
	fill(tr, 3, 2)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{})
	current := version{nodelocalv1.File_nodelocal_v1_nodelocal_proto}
	request := current.request("node-1", nil)
	later(request)
	r := current.watch(t, b, request)
	full, seen := r.batch()
	if !full || len(r.endpoints) != 3 {
		t.Errorf("full is %t, and it has %v", full, r.endpoints)
	}
	tr.DeleteService("default", "web-2")
	request = current.request("node-1", seen)
	later(seen.Interface())
	later(request)
	r = current.watch(t, b, request)
	if full, _ := r.batch(); full {
		t.Error("everything was sent again")
	}
}
