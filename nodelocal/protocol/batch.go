package protocol

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// Batch puts the parts of batches together. The zero value waits for a first part.
type Batch struct {
	changes *model.Changes
	// last is the port that a continuation may continue.
	last *model.ServicePort
}

// Add takes the next part. When it ends a batch, Add returns what the batch changes and the position after it; before that
// it returns neither. After an error, which names port and field, the batch is lost, and the stream with it.
func (b *Batch) Add(update *nodelocalv1.Update) (*model.Changes, *nodelocalv1.Position, error) {
	if err := b.add(update); err != nil {
		b.reset()
		return nil, nil, err
	}
	if update.GetSync() == nil {
		return nil, nil, nil
	}
	changes := b.changes
	b.reset()
	if err := checkFull(changes); err != nil {
		return nil, nil, err
	}
	return changes, update.GetSync().GetPosition(), nil
}

func (b *Batch) reset() { *b = Batch{} }

func (b *Batch) add(update *nodelocalv1.Update) error {
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
		decoded, err := DecodeID(id)
		if err != nil {
			return fmt.Errorf("deletion of port %s: %w", decoded, err)
		}
		b.delete(decoded)
	}
	return nil
}

func (b *Batch) set(message *nodelocalv1.ServicePort) error {
	if message.GetContinued() {
		return b.continuePort(message)
	}
	port, err := DecodePort(message)
	if err != nil {
		return err
	}
	b.changes.Ports[port.ID] = port
	b.last = port
	return nil
}

func (b *Batch) continuePort(message *nodelocalv1.ServicePort) error {
	id, err := DecodeID(message.GetId())
	if err != nil {
		return fmt.Errorf("continuation of port %s: %w", id, err)
	}
	if b.last == nil || b.last.ID != id {
		return fmt.Errorf("continuation of port %s: it does not follow that port", id)
	}
	d := decoder{family: id.Family}
	b.last.Cluster = append(b.last.Cluster, d.endpoints("cluster", message.GetCluster())...)
	b.last.Local = append(b.last.Local, d.endpoints("local", message.GetLocal())...)
	b.last.Serving = append(b.last.Serving, d.addrPorts("serving", message.GetServing())...)
	for _, list := range [][]model.Endpoint{b.last.Cluster, b.last.Local} {
		if !slices.IsSortedFunc(list, model.CompareEndpoints) {
			d.fail("continued", errors.New("the lists together are not sorted"))
		}
	}
	if d.err != nil {
		return fmt.Errorf("continuation of port %s: %w", id, d.err)
	}
	return nil
}

func (b *Batch) delete(id model.PortID) {
	if b.changes.Full {
		delete(b.changes.Ports, id)
		return
	}
	b.changes.Ports[id] = nil
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
