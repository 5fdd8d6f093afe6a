package protocol

import (
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// PartSize is about the length of the longest part of a batch, in bytes. It leaves room
// below the 4 MiB that gRPC takes by default.
const PartSize = 1 << 20

// maxEndpoints is the number of endpoints, of up to 180 bytes, in one message of a port; more are in continuations.
const maxEndpoints = 5_000

// Update is a part of a batch as it goes over the wire. One encoding of a port serves all clients.
type Update = []byte

// Field is one or more fields of an Update, encoded.
type Field []byte

// SetField encodes a port, with its continuations if its lists are long: each Field is at most PartSize long. It leaves
// out labels and annotations, because each client has its own selection; AddKeys adds them.
func SetField(port *model.ServicePort) (fields []Field) {
	message := EncodePort(port)
	message.ServiceLabels, message.ServiceAnnotations = nil, nil
	cluster, local, serving, notServing := message.Cluster, message.Local, message.Serving, message.NotServing
	for {
		room := maxEndpoints
		message.Cluster, cluster = cut(cluster, &room)
		message.Local, local = cut(local, &room)
		message.Serving, serving = cut(serving, &room)
		message.NotServing, notServing = cut(notServing, &room)
		fields = append(fields, field(&nodelocalv1.Update{Set: []*nodelocalv1.ServicePort{message}}))
		if len(cluster)+len(local)+len(serving)+len(notServing) == 0 {
			return fields
		}
		message = &nodelocalv1.ServicePort{Id: message.Id, Continued: true}
	}
}

// AddKeys appends the labels and annotations that keys names to fields, which SetField
// returned for the port. It does not modify fields.
func AddKeys(fields []Field, port *model.ServicePort, keys model.ServiceKeys) []Field {
	if keys.Empty() {
		return fields
	}
	more := &nodelocalv1.ServicePort{
		ServiceLabels:      valuesAt(keys.Labels, port.ServiceLabels),
		ServiceAnnotations: valuesAt(keys.Annotations, port.ServiceAnnotations),
	}
	if len(more.ServiceLabels)+len(more.ServiceAnnotations) == 0 || len(fields[0]) == 0 {
		return fields
	}
	// Fields that follow a message belong to it.
	number, kind, tag := protowire.ConsumeTag(fields[0])
	body, _ := protowire.ConsumeBytes(fields[0][tag:])
	body, err := proto.MarshalOptions{}.MarshalAppend(slices.Clip(body), more)
	if err != nil {
		return fields // a text that is not UTF-8, as in field
	}
	first := protowire.AppendTag(nil, number, kind)
	return append([]Field{protowire.AppendBytes(first, body)}, fields[1:]...)
}

// valuesAt returns the entries of all with the keys.
func valuesAt(keys []string, all map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range keys {
		if value, has := all[key]; has {
			out[key] = value
		}
	}
	return out
}

// cut splits list after as many elements as there is room for.
func cut[T any](list []T, room *int) (head, rest []T) {
	n := min(len(list), *room)
	*room -= n
	return list[:n], list[n:]
}

func field(update *nodelocalv1.Update) Field {
	out, err := proto.Marshal(update)
	if err != nil {
		// Text that is not UTF-8 is the one reason. Names come from objects that the API server or a JSON decoder checked.
		return nil
	}
	return out
}

// Parts splits changes into the parts of one batch, which ends with sync. encode returns SetField of a port.
func Parts(changes *model.Changes, sync *nodelocalv1.Sync, encode func(*model.ServicePort) []Field) iter.Seq[Update] {
	if changes == nil {
		changes = &model.Changes{}
	}
	return func(yield func(Update) bool) {
		p := parts{yield: yield}
		p.add(field(&nodelocalv1.Update{Full: changes.Full}))
		if changes.Node != nil {
			p.add(field(&nodelocalv1.Update{Node: EncodeNode(changes.Node)}))
		}
		if changes.ServiceCIDRsChanged {
			p.add(field(&nodelocalv1.Update{ServiceCidrs: EncodeServiceCIDRs(changes.ServiceCIDRs)}))
		}
		for _, id := range slices.SortedFunc(maps.Keys(changes.Ports), model.PortID.Compare) {
			if port := changes.Ports[id]; port == nil {
				p.add(field(&nodelocalv1.Update{Delete: []*nodelocalv1.PortID{EncodeID(id)}}))
			} else {
				for _, f := range encode(port) {
					p.add(f)
				}
			}
		}
		p.add(field(&nodelocalv1.Update{Sync: sync}))
		p.flush()
	}
}

// parts collects fields until they are a part.
type parts struct {
	yield   func(Update) bool
	buffer  []byte
	stopped bool
}

func (p *parts) add(f Field) {
	if len(p.buffer) > 0 && len(p.buffer)+len(f) > PartSize {
		p.flush()
	}
	p.buffer = append(p.buffer, f...)
}

func (p *parts) flush() {
	if !p.stopped {
		p.stopped = !p.yield(p.buffer)
	}
	p.buffer = nil
}
