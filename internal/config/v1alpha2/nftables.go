package v1alpha2

// NFTablesConfiguration is the section "nftables", of the mode that this proxy has.
type NFTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded". Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
}
