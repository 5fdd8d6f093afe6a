package v1alpha2

// IPTablesConfiguration is the section "iptables". The proxy reads, checks and converts it, and
// otherwise ignores it: it does not have the mode.
type IPTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded".
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// LocalhostNodePorts lets node ports answer on IPv4 loopback addresses. Default false (true
	// in v1alpha1). This proxy goes by "localhost" in nodePortAddresses instead.
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
}
