package v1alpha2

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
