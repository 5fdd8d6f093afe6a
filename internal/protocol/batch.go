// Package protocol turns the model into the messages of the node-local API, and back. Servers split changes into parts
// of bounded size with [Parts]; clients put them together with a [Batch].
package protocol

import (
	"cmp"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Limits bounds what a server can make a client keep. A zero field is that of DefaultLimits.
type Limits struct {
	// Ports bounds the ports that a batch sets and deletes together, continuations not counted.
	Ports int
	// Addresses bounds the addresses of the ports in a batch, in all their lists. Labels and annotations count too.
	Addresses int
	// Bytes bounds the length of a batch on the wire.
	Bytes int
}

// DefaultLimits has room for twenty times the Services and the pods that Kubernetes is tested with (10,000 and
// 150,000). A batch that uses all of it takes about half a gigabyte of memory.
var DefaultLimits = Limits{Ports: 200_000, Addresses: 3_000_000, Bytes: 512 << 20}

// MaxTriggers is the highest number of event times in a batch (Sync.trigger_times).
const MaxTriggers = 10_000

// ErrLimit is returned, wrapped, for more than Limits allows.
var ErrLimit = errors.New("more than this client takes")

// Check returns an error that names the field of l that used exceeds.
func (l Limits) Check(used Limits) error {
	check := func(name string, used, limit int) error {
		if used > limit {
			return fmt.Errorf("%w: Limits.%s is %d, and the server has sent %d", ErrLimit, name, limit, used)
		}
		return nil
	}
	return cmp.Or(
		check("Ports", used.Ports, cmp.Or(l.Ports, DefaultLimits.Ports)),
		check("Addresses", used.Addresses, cmp.Or(l.Addresses, DefaultLimits.Addresses)),
		check("Bytes", used.Bytes, cmp.Or(l.Bytes, DefaultLimits.Bytes)),
	)
}

// frameHeader is the number of bytes that gRPC puts before each message. They count, so
// that a batch of empty parts ends too.
const frameHeader = 5

// add counts a part.
func (l *Limits) add(update *nodelocalv1.Update) {
	l.Bytes += proto.Size(update) + frameHeader
	l.Ports += len(update.GetDelete())
	for _, p := range update.GetSet() {
		if !p.GetContinued() {
			l.Ports++
		}
		l.Addresses += len(p.GetExternalIps()) + len(p.GetLoadBalancerIps()) + len(p.GetLoadBalancerSourceRanges()) +
			len(p.GetCluster()) + len(p.GetLocal()) + len(p.GetServing()) + len(p.GetNotServing())
		texts := model.ServicePort{ServiceLabels: p.GetServiceLabels(), ServiceAnnotations: p.GetServiceAnnotations()}
		l.Addresses += texts.Addresses()
	}
}

// Batch puts the parts of batches together. The zero value waits for a first part.
type Batch struct {
	// Limits bounds each batch.
	Limits Limits
	// OnSkip, if set, is called for each port that is left out because of ErrUnknownValue, which the error wraps.
	OnSkip func(error)

	changes *model.Changes
	used    Limits
	// port is the last port, which continuations may continue; nil before the first.
	port *nodelocalv1.ServicePort
}

// Add takes the next part. When it ends a batch, Add returns the changes and the end; before that it returns neither.
// After an error, which names port and field or the limit, the batch is lost, and the stream with it.
func (b *Batch) Add(update *nodelocalv1.Update) (*model.Changes, *nodelocalv1.Sync, error) {
	err := b.add(update)
	if err == nil && update.GetSync() == nil {
		return nil, nil, nil
	}
	if err == nil {
		err = cmp.Or(b.endPort(), checkFull(b.changes))
	}
	changes := b.changes
	*b = Batch{Limits: b.Limits, OnSkip: b.OnSkip}
	if err != nil {
		return nil, nil, err
	}
	return changes, update.GetSync(), nil
}

func (b *Batch) add(update *nodelocalv1.Update) (err error) {
	b.used.add(update)
	if err := b.Limits.Check(b.used); err != nil {
		return err
	}
	if b.changes == nil {
		b.changes = &model.Changes{Full: update.GetFull(), Ports: map[model.PortID]*model.ServicePort{}}
	} else if update.GetFull() {
		return errors.New("full state in the middle of a batch")
	}
	if node := update.GetNode(); node != nil {
		if b.changes.Node, err = DecodeNode(node); err != nil {
			return err
		}
	}
	if ranges := update.GetServiceCidrs(); ranges != nil {
		if b.changes.ServiceCIDRs, err = DecodeServiceCIDRs(ranges); err != nil {
			return err
		}
		b.changes.ServiceCIDRsChanged = true
	}
	for _, port := range update.GetSet() {
		if err := b.set(port); err != nil {
			return err
		}
	}
	for _, id := range update.GetDelete() {
		if err := b.delete(id); err != nil {
			return err
		}
	}
	return nil
}

// set begins a port, or adds the lists of a continuation to the last one.
func (b *Batch) set(message *nodelocalv1.ServicePort) error {
	if !message.GetContinued() {
		err := b.endPort()
		b.port = message
		return err
	}
	if b.port == nil || !proto.Equal(b.port.GetId(), message.GetId()) {
		id, _ := DecodeID(message.GetId())
		return fmt.Errorf("continuation of port %s: it does not follow that port", id)
	}
	b.port.Cluster = append(b.port.Cluster, message.GetCluster()...)
	b.port.Local = append(b.port.Local, message.GetLocal()...)
	b.port.Serving = append(b.port.Serving, message.GetServing()...)
	b.port.NotServing = append(b.port.NotServing, message.GetNotServing()...)
	return nil
}

// endPort decodes the last port, which has all its continuations. A port that was known
// before, and is left out now, is gone.
func (b *Batch) endPort() error {
	message := b.port
	if message == nil {
		return nil
	}
	b.port = nil
	port, err := DecodePort(message)
	switch {
	case err == nil:
		b.changes.Ports[port.ID] = port
		return nil
	case !errors.Is(err, ErrUnknownValue):
		return err
	}
	if b.OnSkip != nil {
		b.OnSkip(err)
	}
	if id, err := DecodeID(message.GetId()); err == nil {
		b.remove(id)
	}
	return nil
}

func (b *Batch) delete(message *nodelocalv1.PortID) error {
	if proto.Equal(b.port.GetId(), message) {
		b.port = nil
	}
	id, err := DecodeID(message)
	if errors.Is(err, ErrUnknownValue) {
		return nil // it was left out when it came
	}
	if err != nil {
		return fmt.Errorf("deletion of port %s: %w", id, err)
	}
	b.remove(id)
	return nil
}

func (b *Batch) remove(id model.PortID) {
	if b.changes.Full {
		delete(b.changes.Ports, id)
	} else {
		b.changes.Ports[id] = nil
	}
}

// checkFull refuses a full state without a node: acting on it would take the node's addresses away.
func checkFull(changes *model.Changes) error {
	if changes.Full && changes.Node == nil {
		return errors.New("full state without a node")
	}
	if changes.Full && !changes.ServiceCIDRsChanged {
		return errors.New("full state without service_cidrs")
	}
	return nil
}
