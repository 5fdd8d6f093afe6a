// Package iptables is the section of a KubeProxyConfiguration for the mode iptables. This
// proxy does not have the mode: the section is read, checked and converted, so that nothing
// of it is lost, and otherwise ignored.
package iptables

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Configuration is the section "iptables".
type Configuration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded".
	// Default 14.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// LocalhostNodePorts lets node ports answer on IPv4 loopback addresses. Default false (true
	// in v1alpha1). This proxy goes by "localhost" in nodePortAddresses instead.
	LocalhostNodePorts *bool `json:"localhostNodePorts"`
}

// SetDefaults fills in what is not set.
func (c *Configuration) SetDefaults() {
	if c.MasqueradeBit == nil {
		c.MasqueradeBit = ptr.To[int32](14)
	}
	if c.LocalhostNodePorts == nil {
		c.LocalhostNodePorts = ptr.To(false)
	}
}

// Validate checks a section with defaults filled in; path is where it is.
func (c *Configuration) Validate(path *field.Path) (errs field.ErrorList) {
	if bit := *c.MasqueradeBit; bit < 0 || bit > 31 {
		errs = append(errs, field.Invalid(path.Child("masqueradeBit"), bit, "must be a bit of the packet mark, 0 to 31"))
	}
	return errs
}
