package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IPTablesConfiguration is the section "iptables", which the proxy only reads, checks and converts.
type IPTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded". Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// LocalhostNodePorts lets node ports answer on IPv4 loopback addresses. Default false (true in v1alpha1).
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
}

// IPVSConfiguration is the section "ipvs", which the proxy only reads, checks and converts.
type IPVSConfiguration struct {
	// MasqueradeBit is as in the section "iptables". In v1alpha1 the mode ipvs uses iptables.masqueradeBit.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// Scheduler is the name of an IPVS scheduler; empty is the mode's default.
	Scheduler string `json:"scheduler"`
	// ExcludeCIDRs are addresses of virtual servers of other programs. They stay when the
	// leftovers of the mode are removed.
	ExcludeCIDRs []string `json:"excludeCIDRs"`
	// StrictARP keeps the node from answering ARP requests for addresses of kube-ipvs0.
	StrictARP bool `json:"strictARP"`
	// TCPTimeout is the timeout of idle IPVS sessions of TCP; 0 leaves the system's.
	TCPTimeout metav1.Duration `json:"tcpTimeout"`
	// TCPFinTimeout is the timeout of TCP sessions after a FIN; 0 leaves the system's.
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	// UDPTimeout is the timeout of idle IPVS sessions of UDP; 0 leaves the system's.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
}

func (c *IPVSConfiguration) validate(path *field.Path) field.ErrorList {
	errs := validateMasqueradeBit(c.MasqueradeBit, path)
	const unset = "; 0s leaves the system's timeout"
	errs = append(errs, notNegative(path.Child("tcpTimeout"), c.TCPTimeout.Duration, unset)...)
	errs = append(errs, notNegative(path.Child("tcpFinTimeout"), c.TCPFinTimeout.Duration, unset)...)
	errs = append(errs, notNegative(path.Child("udpTimeout"), c.UDPTimeout.Duration, unset)...)
	return append(errs, validateCIDRs(c.ExcludeCIDRs, path.Child("excludeCIDRs"))...)
}

// NFTablesConfiguration is the section "nftables", of the mode that this proxy has.
type NFTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded". Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
}

// WindowsConfiguration is the section "windows". The proxy reads and converts it, and otherwise ignores it.
type WindowsConfiguration struct {
	// RunAsService registers the process with the Windows service manager.
	RunAsService bool `json:"runAsService"`
}

// WinkernelConfiguration is the section "winkernel", of the mode kernelspace. The proxy only reads and converts it.
type WinkernelConfiguration struct {
	// NetworkName is the network that endpoints and policies are made in.
	NetworkName string `json:"networkName"`
	// SourceVip is the IP address of the endpoint that NAT uses as source.
	SourceVip string `json:"sourceVip"`
	// EnableDSR makes policies with direct server return.
	EnableDSR bool `json:"enableDSR"`
	// RootHnsEndpointName is the endpoint attached to the l2bridge of the root namespace.
	RootHnsEndpointName string `json:"rootHnsEndpointName"`
	// ForwardHealthCheckVip forwards the Service's address to the health check port.
	ForwardHealthCheckVip bool `json:"forwardHealthCheckVip"`
}
