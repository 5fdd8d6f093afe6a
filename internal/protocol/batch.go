package protocol

import (
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Batch puts the parts of batches together. The zero value waits for a first part.
type Batch struct {
	// Limits bounds each batch.
	Limits Limits
	// OnSkip, if set, is called for each port that is left out because this client does not know a protocol, an IP family
	// or a policy in it. The error names port and field, and wraps ErrUnknownValue. To the receiver the port is not there.
	OnSkip func(error)

	changes *model.Changes
	used    Limits
	last    lastPort
}

// lastPort is the port that a continuation may continue.
type lastPort struct {
	// id is that of the message; nil before the first port.
	id *nodelocalv1.PortID
	// port is nil if it was left out.
	port *model.ServicePort
	// continued says that the lists of port are not sorted yet.
	continued bool
}

// Add takes the next part. When it ends a batch, Add returns what the batch changes, and its end, from which DecodeTriggers
// reads; before that it returns neither. After an error, which names port and field or the limit, the batch is lost, and the stream with it.
func (b *Batch) Add(update *nodelocalv1.Update) (*model.Changes, *nodelocalv1.Sync, error) {
	if err := b.add(update); err != nil {
		b.reset()
		return nil, nil, err
	}
	if update.GetSync() == nil {
		return nil, nil, nil
	}
	b.last.finish()
	changes := b.changes
	b.reset()
	if err := checkFull(changes); err != nil {
		return nil, nil, err
	}
	return changes, update.GetSync(), nil
}

func (b *Batch) reset() { *b = Batch{Limits: b.Limits, OnSkip: b.OnSkip} }

func (b *Batch) add(update *nodelocalv1.Update) error {
	b.used.add(update, proto.Size(update))
	if err := b.Limits.Check(b.used); err != nil {
		return err
	}
	first := b.changes == nil
	if first {
		b.changes = &model.Changes{Full: update.GetFull(), Ports: map[model.PortID]*model.ServicePort{}}
	}
	if update.GetFull() && !first {
		return errors.New("full state in the middle of a batch")
	}
	if node := update.GetNode(); node != nil {
		decoded, err := DecodeNode(node)
		if err != nil {
			return err
		}
		b.changes.Node = decoded
	}
	if ranges := update.GetServiceCidrs(); ranges != nil {
		decoded, err := DecodeServiceCIDRs(ranges)
		if err != nil {
			return err
		}
		b.changes.ServiceCIDRs, b.changes.ServiceCIDRsChanged = decoded, true
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

func (b *Batch) set(message *nodelocalv1.ServicePort) error {
	if message.GetContinued() {
		more, err := b.last.extend(message)
		if err != nil {
			return err
		}
		return b.count(more)
	}
	b.last.finish()
	port, err := DecodePort(message)
	if errors.Is(err, ErrUnknownValue) {
		b.last = lastPort{id: message.GetId()}
		return b.skip(message.GetId(), err)
	}
	if err != nil {
		return err
	}
	if err := b.count(port); err != nil {
		return err
	}
	b.changes.Ports[port.ID] = port
	b.last = lastPort{id: message.GetId(), port: port}
	return nil
}

// count counts the addresses of a port, or of a continuation.
func (b *Batch) count(port *model.ServicePort) error {
	b.used.Addresses += port.Addresses()
	return b.Limits.Check(b.used)
}

// skip leaves a port out. One that was known before, when it had other values, is gone.
func (b *Batch) skip(message *nodelocalv1.PortID, err error) error {
	if b.OnSkip != nil {
		b.OnSkip(err)
	}
	if id, err := DecodeID(message); err == nil {
		b.remove(id)
	}
	return nil
}

func (b *Batch) delete(message *nodelocalv1.PortID) error {
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
		return
	}
	b.changes.Ports[id] = nil
}

// extend appends the lists of a continuation, and returns them. finish sorts them when all have come.
func (l *lastPort) extend(message *nodelocalv1.ServicePort) (*model.ServicePort, error) {
	more := &model.ServicePort{}
	if l.id == nil || !sameID(l.id, message.GetId()) {
		id, _ := DecodeID(message.GetId())
		return nil, fmt.Errorf("continuation of port %s: it does not follow that port", id)
	}
	if l.port == nil {
		return more, nil
	}
	d := decoder{family: l.port.ID.Family}
	more.Cluster = d.endpoints("cluster", message.GetCluster())
	more.Local = d.endpoints("local", message.GetLocal())
	more.Serving = d.addrPorts("serving", message.GetServing())
	more.NotServing = d.addrPorts("not_serving", message.GetNotServing())
	if d.err != nil {
		return nil, fmt.Errorf("continuation of port %s: %w", l.port.ID, d.err)
	}
	l.port.Cluster = append(l.port.Cluster, more.Cluster...)
	l.port.Local = append(l.port.Local, more.Local...)
	l.port.Serving = append(l.port.Serving, more.Serving...)
	l.port.NotServing = append(l.port.NotServing, more.NotServing...)
	l.continued = true
	return more, nil
}

func sameID(a, b *nodelocalv1.PortID) bool {
	return a.GetNamespace() == b.GetNamespace() && a.GetService() == b.GetService() && a.GetPort() == b.GetPort() &&
		a.GetProtocol() == b.GetProtocol() && a.GetFamily() == b.GetFamily()
}

// finish sorts the lists of a port after its last continuation.
func (l *lastPort) finish() {
	if l.continued {
		l.port.Cluster = endpointSet(l.port.Cluster)
		l.port.Local = endpointSet(l.port.Local)
		l.port.Serving = sortedSet(l.port.Serving, netip.AddrPort.Compare)
		l.port.NotServing = sortedSet(l.port.NotServing, netip.AddrPort.Compare)
	}
	l.continued = false
}

// checkFull refuses a full state without a node: acting on it would take the node's addresses away.
func checkFull(changes *model.Changes) error {
	if !changes.Full {
		return nil
	}
	if changes.Node == nil {
		return errors.New("full state without a node")
	}
	if !changes.ServiceCIDRsChanged {
		return errors.New("full state without service_cidrs")
	}
	return nil
}
