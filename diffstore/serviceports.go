package diffstore

import "github.com/nftproxy/nftproxy/model"

// ServicePorts is a Store of Service ports. Write takes changes of all or some ports. Updated and Deleted return the
// ports that differ from those of the dataplane, also after a full state that repeats all ports, as after a
// reconnection.
type ServicePorts struct {
	*Store[model.PortID, *model.ServicePort]
}

// NewServicePorts returns an empty ServicePorts, ordered by [model.PortID.Compare], which compares ports by
// [model.ServicePort.Equal].
func NewServicePorts() ServicePorts {
	return ServicePorts{NewFunc(model.PortID.Compare, (*model.ServicePort).Equal)}
}

// Write writes the ports of changes: a full state if changes is Full, else an increment. It does
// not look at the Node and the ServiceCIDRs.
func (s ServicePorts) Write(changes *model.Changes) {
	if changes.Full {
		s.Begin()
	}
	for id, port := range changes.Ports {
		if port == nil {
			s.Delete(id)
		} else {
			s.Set(id, port)
		}
	}
}
