package v1alpha2

import "k8s.io/apimachinery/pkg/util/validation/field"

// NFTablesConfiguration is the section "nftables", of the mode that this proxy has.
type NFTablesConfiguration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded".
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
}

func (c *NFTablesConfiguration) setDefaults() {
	setDefault(&c.MasqueradeBit, defaultMasqueradeBit)
}

func (c *NFTablesConfiguration) validate(path *field.Path) field.ErrorList {
	return validateMasqueradeBit(c.MasqueradeBit, path)
}
