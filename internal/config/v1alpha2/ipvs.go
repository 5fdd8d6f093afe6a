package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// IPVSConfiguration is the section "ipvs", which the proxy only reads, checks and converts.
type IPVSConfiguration struct {
	// MasqueradeBit is as in the section "iptables". In v1alpha1 the mode ipvs uses iptables.masqueradeBit.
	MasqueradeBit *int32 `json:"masqueradeBit"`
	// Scheduler is the name of an IPVS scheduler; empty is the mode's default.
	Scheduler string `json:"scheduler"`
	// ExcludeCIDRs are addresses of virtual servers of other programs. They stay when the leftovers of the mode are removed.
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
