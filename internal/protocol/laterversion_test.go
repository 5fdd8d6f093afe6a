package protocol_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nftproxy/nftproxy/internal/protocol"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// laterVersion is the API with one more value in each enumeration, and one more field in ServicePort.
func laterVersion(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	file := protodesc.ToFileDescriptorProto(nodelocalv1.File_nodelocal_v1_nodelocal_proto)
	for _, enum := range file.EnumType {
		enum.Value = append(enum.Value, &descriptorpb.EnumValueDescriptorProto{Name: proto.String("LATER_" + strings.ToUpper(enum.GetName())), Number: proto.Int32(99)})
	}
	for _, message := range file.MessageType {
		if message.GetName() == "ServicePort" {
			message.Field = append(message.Field, &descriptorpb.FieldDescriptorProto{
				Name: proto.String("later"), Number: proto.Int32(200),
				Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			})
		}
	}
	built, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return built.Messages().ByName("Update")
}

// testBatchOfALaterVersion reads messages that were built from the API of a later version.
func testBatchOfALaterVersion(t *testing.T) {
	later := laterVersion(t)
	const good = `id { namespace: "shop" service: "good" protocol: PROTOCOL_TCP family: FAMILY_IPV4 } cluster_ip: "10.96.0.1" port: 80`
	port := func(service, id, fields string) string {
		return `set { id { namespace: "shop" service: "` + service + `" ` + id + ` } cluster_ip: "10.96.0.2" port: 80 ` + fields + ` } `
	}
	const tcp, known = `protocol: PROTOCOL_TCP`, `protocol: PROTOCOL_TCP family: FAMILY_IPV4`
	for _, tc := range []struct {
		name string
		text string
		// skipped is the fields that were named, gone the Services that an increment takes away.
		skipped, gone []string
		there         []string
	}{
		{"a new field is ignored", port("new", known, `later: "x"`), nil, nil, []string{"good", "new"}},
		{"a new placement is one that nobody named", port("new", known, `cluster { address: "10.1.0.1" port: 80 placement: LATER_PLACEMENT }`), nil, nil, []string{"good", "new"}},
		{"a new protocol", port("new", `protocol: LATER_PROTOCOL family: FAMILY_IPV4`, ""), []string{"id.protocol: 99"}, nil, []string{"good"}},
		{"a new family", port("new", tcp+` family: LATER_FAMILY`, ""), []string{"id.family: 99"}, nil, []string{"good"}},
		{"a new internal policy", port("new", known, `internal_policy: LATER_TRAFFICPOLICY`), []string{"internal_policy: 99"}, []string{"new"}, []string{"good"}},
		{"a new external policy", port("new", known, `external_policy: LATER_TRAFFICPOLICY`), []string{"external_policy: 99"}, []string{"new"}, []string{"good"}},
		{"a new policy of a port without the fields of the old ones", `set { id { service: "new" ` + known + ` } external_policy: LATER_TRAFFICPOLICY } `, []string{"external_policy: 99"}, []string{"new"}, []string{"good"}},
		{"continuations of a port that is left out", port("new", `protocol: LATER_PROTOCOL family: FAMILY_IPV4`, "") +
			port("new", `protocol: LATER_PROTOCOL family: FAMILY_IPV4`, `continued: true cluster { address: "10.1.0.1" port: 80 }`), []string{"id.protocol: 99"}, nil, []string{"good"}},
		{"a deletion of a port that was left out", `delete { service: "new" protocol: LATER_PROTOCOL family: FAMILY_IPV4 } `, nil, nil, []string{"good"}},
	} {
		for _, full := range []bool{false, true} {
			name, text := tc.name+", increment", tc.text+`set { `+good+` } sync {}`
			if full {
				name, text = tc.name+", full state", `full: true node { name: "n" } service_cidrs {} `+text
				tc.gone = nil
			}
			t.Run(name, func(t *testing.T) {
				message := dynamicpb.NewMessage(later)
				if err := prototext.Unmarshal([]byte(text), message); err != nil {
					t.Fatal(err)
				}
				data, err := proto.Marshal(message)
				if err != nil {
					t.Fatal(err)
				}
				var update nodelocalv1.Update
				if err := proto.Unmarshal(data, &update); err != nil {
					t.Fatal(err)
				}
				var skipped []error
				batch := protocol.Batch{OnSkip: func(err error) { skipped = append(skipped, err) }}
				changes, _, err := batch.Add(&update)
				if err != nil {
					t.Fatal(err)
				}
				var there, gone []string
				for id, port := range changes.Ports {
					if port != nil {
						there = append(there, id.Service)
					} else {
						gone = append(gone, id.Service)
					}
				}
				slices.Sort(there)
				if !slices.Equal(there, tc.there) || !slices.Equal(gone, tc.gone) {
					t.Errorf("set %q, deleted %q, want %q and %q", there, gone, tc.there, tc.gone)
				}
				if len(skipped) != len(tc.skipped) {
					t.Fatalf("skipped %v, want %q", skipped, tc.skipped)
				}
				for i, err := range skipped {
					if !errors.Is(err, protocol.ErrUnknownValue) || !strings.Contains(err.Error(), tc.skipped[i]) || !strings.Contains(err.Error(), "new") {
						t.Errorf("skipped because %v, want %q", err, tc.skipped[i])
					}
				}
			})
		}
	}
}
