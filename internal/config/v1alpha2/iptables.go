package v1alpha2

// IPTablesConfiguration is the section "iptables", which the proxy only reads, checks and converts.
type IPTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded". Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// LocalhostNodePorts lets node ports answer on IPv4 loopback addresses. Default false (true in v1alpha1).
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
}
