// Package ipvs is the section of a KubeProxyConfiguration for the mode ipvs. This proxy does
// not have the mode: the section is read, checked and converted, so that nothing of it is
// lost, and otherwise ignored.
package ipvs

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// Configuration is the section "ipvs".
type Configuration struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that says "to be masqueraded".
	// Default 14. In v1alpha1 the mode ipvs uses iptables.masqueradeBit.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// Scheduler is the name of an IPVS scheduler; empty is the mode's default.
	Scheduler string `json:"scheduler"`
	// ExcludeCIDRs are the addresses of IPVS services to keep when cleaning up.
	ExcludeCIDRs []string `json:"excludeCIDRs"`
	// StrictARP sets arp_ignore and arp_announce, so that addresses of kube-ipvs0 are not
	// answered for.
	StrictARP bool `json:"strictARP"`
	// TCPTimeout is the timeout of idle IPVS sessions of TCP; 0 leaves the system's.
	TCPTimeout metav1.Duration `json:"tcpTimeout"`
	// TCPFinTimeout is the timeout of TCP sessions after a FIN; 0 leaves the system's.
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	// UDPTimeout is the timeout of idle IPVS sessions of UDP; 0 leaves the system's.
	UDPTimeout metav1.Duration `json:"udpTimeout"`
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
	errs = append(errs, validateTimeout(c.TCPTimeout, path.Child("tcpTimeout"))...)
	errs = append(errs, validateTimeout(c.TCPFinTimeout, path.Child("tcpFinTimeout"))...)
	errs = append(errs, validateTimeout(c.UDPTimeout, path.Child("udpTimeout"))...)
	for i, cidr := range c.ExcludeCIDRs {
		if _, _, err := netutils.ParseCIDRSloppy(cidr); err != nil {
			errs = append(errs, field.Invalid(path.Child("excludeCIDRs").Index(i), cidr, "must be a CIDR such as 10.0.0.0/8 or fd00::/8"))
		}
	}
	return errs
}

func validateTimeout(d metav1.Duration, path *field.Path) (errs field.ErrorList) {
	if d.Duration < 0 {
		errs = append(errs, field.Invalid(path, d.Duration.String(), "must not be negative; 0s leaves the system's timeout"))
	}
	return errs
}
