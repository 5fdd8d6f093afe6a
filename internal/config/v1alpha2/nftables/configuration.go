// Package nftables is the section of a KubeProxyConfiguration for the mode nftables, the one
// that this proxy has.
package nftables

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Configuration is the section "nftables".
type Configuration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded".
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
}

// SetDefaults fills in what is not set.
func (c *Configuration) SetDefaults() {
	if c.MasqueradeBit == nil {
		c.MasqueradeBit = ptr.To[int32](14)
	}
}

// Validate checks a section with defaults filled in; path is where it is.
func (c *Configuration) Validate(path *field.Path) (errs field.ErrorList) {
	if bit := *c.MasqueradeBit; bit < 0 || bit > 31 {
		errs = append(errs, field.Invalid(path.Child("masqueradeBit"), bit, "must be a bit of the packet mark, 0 to 31"))
	}
	return errs
}
