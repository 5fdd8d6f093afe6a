package protocol

import (
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nftproxy/nftproxy/model"
	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// EncodeID returns the message for a PortID.
func EncodeID(id model.PortID) *nodelocalv1.PortID {
	return &nodelocalv1.PortID{
		Namespace: id.Namespace,
		Service:   id.Service,
		Port:      id.Port,
		Protocol:  nodelocalv1.Protocol(id.Protocol),
		Family:    nodelocalv1.Family(id.Family),
	}
}

// EncodePort returns the message for a ServicePort. Parts of a second of its AffinityTimeout are lost.
func EncodePort(port *model.ServicePort) *nodelocalv1.ServicePort {
	return &nodelocalv1.ServicePort{
		Id:                       EncodeID(port.ID),
		ClusterIp:                encodeAddr(port.ClusterIP),
		Port:                     uint32(port.Port),
		NodePort:                 uint32(port.NodePort),
		ExternalIps:              texts(port.ExternalIPs),
		LoadBalancerIps:          texts(port.LoadBalancerIPs),
		LoadBalancerSourceRanges: texts(port.LoadBalancerSourceRanges),
		AffinityTimeoutSeconds:   uint32(port.AffinityTimeout / time.Second),
		InternalPolicy:           nodelocalv1.TrafficPolicy(port.InternalPolicy),
		ExternalPolicy:           nodelocalv1.TrafficPolicy(port.ExternalPolicy),
		HealthCheckNodePort:      uint32(port.HealthCheckNodePort),
		Cluster:                  convert(port.Cluster, encodeEndpoint),
		Local:                    convert(port.Local, encodeEndpoint),
		LocalTerminating:         port.LocalTerminating,
		Serving:                  convert(port.Serving, encodeAddrPort),
		NotServing:               convert(port.NotServing, encodeAddrPort),
		AppProtocol:              port.AppProtocol,
		ServiceType:              nodelocalv1.ServiceType(port.ServiceType),
		ServiceLabels:            port.ServiceLabels,
		ServiceAnnotations:       port.ServiceAnnotations,
		DirectReturn:             port.DirectReturn,
		Created:                  encodeCreated(port.Creation),
		Uid:                      uidOf(port.Creation),
	}
}

func encodeCreated(c *model.Creation) *timestamppb.Timestamp {
	if c == nil {
		return nil
	}
	return timestamppb.New(c.Time)
}

func uidOf(c *model.Creation) string {
	if c == nil {
		return ""
	}
	return c.UID
}

// EncodeKeys returns the message for ServiceKeys, nil if they name nothing.
func EncodeKeys(keys model.ServiceKeys) *nodelocalv1.ServiceKeys {
	if keys.Empty() {
		return nil
	}
	return &nodelocalv1.ServiceKeys{Labels: keys.Labels, Annotations: keys.Annotations}
}

// EncodeNode returns the message for a Node.
func EncodeNode(node *model.Node) *nodelocalv1.Node {
	return &nodelocalv1.Node{Name: node.Name, Ips: texts(node.IPs), PodCidrs: texts(node.PodCIDRs), GoingAway: node.GoingAway}
}

// EncodeServiceCIDRs returns the message for ranges.
func EncodeServiceCIDRs(ranges []netip.Prefix) *nodelocalv1.ServiceCIDRs {
	return &nodelocalv1.ServiceCIDRs{Cidrs: texts(ranges)}
}

// EncodeSync returns the end of a batch: the position after it, and the first MaxTriggers
// times of events that led to it.
func EncodeSync(position *nodelocalv1.Position, triggers []time.Time) *nodelocalv1.Sync {
	return &nodelocalv1.Sync{
		Position: position, TriggerTimes: convert(triggers[:min(len(triggers), MaxTriggers)], timestamppb.New),
	}
}

func encodeEndpoint(e model.Endpoint) *nodelocalv1.Endpoint {
	return &nodelocalv1.Endpoint{
		Address: e.AddrPort.Addr().String(), Port: uint32(e.AddrPort.Port()),
		Placement: placementOf(e), Hostname: e.Info.Hostname(), Zone: e.Info.Zone(),
	}
}

func placementOf(e model.Endpoint) nodelocalv1.Placement {
	switch {
	case e.Local:
		return nodelocalv1.Placement_PLACEMENT_LOCAL
	case e.Remote:
		return nodelocalv1.Placement_PLACEMENT_REMOTE
	}
	return nodelocalv1.Placement_PLACEMENT_UNSPECIFIED
}

func encodeAddrPort(ap netip.AddrPort) *nodelocalv1.AddressPort {
	return &nodelocalv1.AddressPort{Address: ap.Addr().String(), Port: uint32(ap.Port())}
}

// encodeAddr returns "" for no address.
func encodeAddr(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

func texts[T interface{ String() string }](list []T) []string { return convert(list, T.String) }
