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

// PartSize is about how many bytes a part of a batch is long at most. It leaves room below the 4 MiB that gRPC takes by default.
const PartSize = 1 << 20

// maxEndpoints is how many endpoints are in one message of a port; more are in continuations. An endpoint with an IPv6
// address takes up to 180 bytes with host name and zone.
const maxEndpoints = 5_000

// Update is a part of a batch as it goes over the wire. Each field of it is a message that is encoded already, so
// that one encoding of a port serves all clients.
type Update = []byte

// The field numbers of nodelocalv1.Update.
const (
	fieldFull         protowire.Number = 1
	fieldSet          protowire.Number = 2
	fieldDelete       protowire.Number = 3
	fieldNode         protowire.Number = 4
	fieldServiceCIDRs protowire.Number = 5
	fieldSync         protowire.Number = 6
)

// Field is one or more fields of an Update, encoded.
type Field []byte

// SetField encodes a port, with its continuations if its lists are long: each Field is at most PartSize long. It leaves
// out labels and annotations, in which clients differ; AddKeys adds them.
func SetField(port *model.ServicePort) []Field {
	message := EncodePort(port)
	message.ServiceLabels, message.ServiceAnnotations = nil, nil
	if len(port.Cluster)+len(port.Local)+len(port.Serving)+len(port.NotServing) <= maxEndpoints {
		return []Field{field(fieldSet, message)}
	}
	var out []Field
	for message := range continuations(message) {
		out = append(out, field(fieldSet, message))
	}
	return out
}

// AddKeys returns fields, which SetField returned for the port, with those labels and annotations of its Service that
// keys names. It does not modify fields.
func AddKeys(fields []Field, port *model.ServicePort, keys model.ServiceKeys) []Field {
	more := &nodelocalv1.ServicePort{ServiceLabels: valuesAt(keys.Labels, port.ServiceLabels), ServiceAnnotations: valuesAt(keys.Annotations, port.ServiceAnnotations)}
	if len(more.ServiceLabels) == 0 && len(more.ServiceAnnotations) == 0 {
		return fields
	}
	// Fields that follow a message belong to it.
	_, _, tag := protowire.ConsumeTag(fields[0])
	body, _ := protowire.ConsumeBytes(fields[0][tag:])
	body, err := proto.MarshalOptions{}.MarshalAppend(slices.Clip(body), more)
	if err != nil {
		return fields // a text that is not UTF-8, as in field
	}
	first := protowire.AppendTag(nil, fieldSet, protowire.BytesType)
	return append([]Field{protowire.AppendBytes(first, body)}, fields[1:]...)
}

// valuesAt returns the values at the keys that there are.
func valuesAt(keys []string, all map[string]string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		if value, has := all[key]; has {
			if out == nil {
				out = make(map[string]string, len(keys))
			}
			out[key] = value
		}
	}
	return out
}

// continuations splits the endpoint lists of a port over messages.
func continuations(port *nodelocalv1.ServicePort) iter.Seq[*nodelocalv1.ServicePort] {
	return func(yield func(*nodelocalv1.ServicePort) bool) {
		cluster, local, serving, notServing := port.Cluster, port.Local, port.Serving, port.NotServing
		for {
			room := maxEndpoints
			port.Cluster, cluster = cut(cluster, &room)
			port.Local, local = cut(local, &room)
			port.Serving, serving = cut(serving, &room)
			port.NotServing, notServing = cut(notServing, &room)
			if !yield(port) || len(cluster)+len(local)+len(serving)+len(notServing) == 0 {
				return
			}
			port = &nodelocalv1.ServicePort{Id: port.Id, Continued: true}
		}
	}
}

// cut returns as much of list as there is room for, and the rest.
func cut[T any](list []T, room *int) (head, rest []T) {
	n := min(len(list), *room)
	*room -= n
	return list[:n], list[n:]
}

// DeleteField encodes that a port is gone.
func DeleteField(id model.PortID) Field { return field(fieldDelete, EncodeID(id)) }

func field(number protowire.Number, message proto.Message) Field {
	body, err := proto.Marshal(message)
	if err != nil {
		// The one reason is text that is not UTF-8. Names come from objects that the API server or a JSON decoder checked.
		body = nil
	}
	out := protowire.AppendTag(nil, number, protowire.BytesType)
	return protowire.AppendBytes(out, body)
}

// Parts splits changes into the parts of one batch, which ends with sync. encode returns SetField of a
// port; it may remember it.
func Parts(changes *model.Changes, sync *nodelocalv1.Sync, encode func(*model.ServicePort) []Field) iter.Seq[Update] {
	if changes == nil {
		changes = &model.Changes{}
	}
	return func(yield func(Update) bool) {
		p := parts{yield: yield}
		if changes.Full {
			p.buffer = protowire.AppendTag(p.buffer, fieldFull, protowire.VarintType)
			p.buffer = protowire.AppendVarint(p.buffer, 1)
		}
		if changes.Node != nil {
			p.add(field(fieldNode, EncodeNode(changes.Node)))
		}
		if changes.ServiceCIDRsChanged {
			p.add(field(fieldServiceCIDRs, EncodeServiceCIDRs(changes.ServiceCIDRs)))
		}
		for _, id := range slices.SortedFunc(maps.Keys(changes.Ports), model.PortID.Compare) {
			if port := changes.Ports[id]; port != nil {
				for _, f := range encode(port) {
					p.add(f)
				}
			} else {
				p.add(DeleteField(id))
			}
		}
		p.add(field(fieldSync, sync))
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
