// Package winkernel is the section of a KubeProxyConfiguration for the mode kernelspace of
// Windows. This proxy does not have the mode: the section is read and converted, so that
// nothing of it is lost, and otherwise ignored.
package winkernel

// Configuration is the section "winkernel".
type Configuration struct {
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
