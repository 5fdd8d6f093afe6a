package v1alpha2

import (
	"net"
	"regexp"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

const (
	wantCIDR     = "must be a CIDR such as 10.0.0.0/8 or fd00::/8"
	wantHostPort = "must be an IP address and a port such as 0.0.0.0:10256 or [::]:10256"
	wantPositive = "must be greater than 0"
	wantNotBelow = "must not be negative"
)

// Validate checks a configuration with defaults filled in, except for FeatureGates and Logging.
// Nothing that kube-proxy v1.37 accepts is an error.
func Validate(c *KubeProxyConfiguration) (errs field.ErrorList) {
	errs = append(errs, validateMode(c)...)
	errs = append(errs, validateLinux(&c.Linux, field.NewPath("linux"))...)
	errs = append(errs, validateHostPort(c.HealthzBindAddress, field.NewPath("healthzBindAddress"))...)
	errs = append(errs, validateHostPort(c.MetricsBindAddress, field.NewPath("metricsBindAddress"))...)
	errs = append(errs, validateNodeIPs(c)...)
	errs = append(errs, validatePeriods(c)...)
	errs = append(errs, validateDetectLocal(c)...)
	errs = append(errs, ValidateNodeLocal(c.NodeLocal)...)
	errs = append(errs, validateNodePortAddresses(c.NodePortAddresses, field.NewPath("nodePortAddresses"))...)
	errs = append(errs, notNegative(field.NewPath("clientConnection", "burst"), c.ClientConnection.Burst, "")...)
	if v := c.ShowHiddenMetricsForVersion; v != "" && !minorVersion.MatchString(v) {
		errs = append(errs, field.Invalid(field.NewPath("showHiddenMetricsForVersion"), v, `must be a minor version such as "1.36"`))
	}
	return errs
}

var minorVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

// validateMode checks the mode and, as kube-proxy does, the sections that the mode uses.
func validateMode(c *KubeProxyConfiguration) (errs field.ErrorList) {
	errs = append(errs, validateMasqueradeBit(c.IPTables.MasqueradeBit, field.NewPath("iptables"))...)
	switch c.Mode {
	case ModeIPTables, ModeKernelspace:
	case ModeNFTables:
		errs = append(errs, validateMasqueradeBit(c.NFTables.MasqueradeBit, field.NewPath("nftables"))...)
		// This one counts when leftovers of the mode ipvs are removed.
		errs = append(errs, validateCIDRs(c.IPVS.ExcludeCIDRs, field.NewPath("ipvs", "excludeCIDRs"))...)
	case ModeIPVS:
		errs = append(errs, c.IPVS.validate(field.NewPath("ipvs"))...)
	default:
		// The proxy runs in this mode only, and converts documents of the others.
		errs = append(errs, field.NotSupported(field.NewPath("mode"), c.Mode, []Mode{ModeNFTables}))
	}
	return errs
}

// validateMasqueradeBit checks the field masqueradeBit of a section.
func validateMasqueradeBit(bit *int32, section *field.Path) (errs field.ErrorList) {
	if *bit < 0 || *bit > 31 {
		errs = append(errs, field.Invalid(section.Child("masqueradeBit"), *bit, "must be a bit of the packet mark, 0 to 31"))
	}
	return errs
}

func validateLinux(c *LinuxConfiguration, path *field.Path) (errs field.ErrorList) {
	if score := *c.OOMScoreAdj; score < -1000 || score > 1000 {
		errs = append(errs, field.Invalid(path.Child("oomScoreAdj"), score, "must be from -1000 to 1000"))
	}
	if c.Leftovers != LeftoversRemove && c.Leftovers != LeftoversReport {
		errs = append(errs, field.NotSupported(path.Child("leftovers"), c.Leftovers, []LeftoversPolicy{LeftoversRemove, LeftoversReport}))
	}
	errs = append(errs, notNegative(path.Child("leftoversDrainTimeout"), c.LeftoversDrainTimeout.Duration, "; 0s ends connections at once")...)
	return append(errs, validateConntrack(&c.Conntrack, path.Child("conntrack"))...)
}

func validateConntrack(c *ConntrackConfiguration, path *field.Path) (errs field.ErrorList) {
	const noLimit, noTimeout = "; 0 leaves the kernel's limit", "; 0s leaves the kernel's timeout"
	errs = append(errs, notNegative(path.Child("maxPerCore"), *c.MaxPerCore, noLimit)...)
	errs = append(errs, notNegative(path.Child("min"), *c.Min, noLimit)...)
	errs = append(errs, notNegative(path.Child("tcpEstablishedTimeout"), c.TCPEstablishedTimeout.Duration, noTimeout)...)
	errs = append(errs, notNegative(path.Child("tcpCloseWaitTimeout"), c.TCPCloseWaitTimeout.Duration, noTimeout)...)
	errs = append(errs, notNegative(path.Child("udpTimeout"), c.UDPTimeout.Duration, noTimeout)...)
	return append(errs, notNegative(path.Child("udpStreamTimeout"), c.UDPStreamTimeout.Duration, noTimeout)...)
}

// notNegative refuses a negative number or duration. zero says what 0 does.
func notNegative[T int32 | int64 | time.Duration](path *field.Path, n T, zero string) field.ErrorList {
	if n >= 0 {
		return nil
	}
	var value any = n
	if d, is := value.(time.Duration); is {
		value = d.String()
	}
	return field.ErrorList{field.Invalid(path, value, wantNotBelow+zero)}
}

// validateHostPort accepts an empty address, for a server that is off.
func validateHostPort(address string, path *field.Path) field.ErrorList {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || netutils.ParseIPSloppy(host) == nil {
		return field.ErrorList{field.Invalid(path, address, wantHostPort)}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return field.ErrorList{field.Invalid(path, address, "must have a port from 1 to 65535")}
	}
	return nil
}

func validateNodeIPs(c *KubeProxyConfiguration) (errs field.ErrorList) {
	path := field.NewPath("nodeIPOverride")
	for i, ip := range c.NodeIPOverride {
		if netutils.ParseIPSloppy(ip) == nil {
			errs = append(errs, field.Invalid(path.Index(i), ip, "must be an IP address such as 192.0.2.1 or 2001:db8::1"))
		}
	}
	if n := len(c.NodeIPOverride); len(errs) == 0 &&
		(n > 2 || n == 2 && netutils.IsIPv6String(c.NodeIPOverride[0]) == netutils.IsIPv6String(c.NodeIPOverride[1])) {
		errs = append(errs, field.Invalid(path, c.NodeIPOverride, "must have at most one IP address of each family"))
	}
	switch c.IPFamilyPolicy {
	case "", IPFamilyPolicySingleStack, IPFamilyPolicyPreferDualStack, IPFamilyPolicyRequireDualStack:
	default:
		errs = append(errs, field.NotSupported(field.NewPath("ipFamilyPolicy"), c.IPFamilyPolicy,
			[]IPFamilyPolicy{IPFamilyPolicySingleStack, IPFamilyPolicyPreferDualStack, IPFamilyPolicyRequireDualStack}))
	}
	return errs
}

func validatePeriods(c *KubeProxyConfiguration) (errs field.ErrorList) {
	if c.SyncPeriod.Duration <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("syncPeriod"), c.SyncPeriod.Duration.String(), wantPositive))
	}
	errs = append(errs, notNegative(field.NewPath("minSyncPeriod"), c.MinSyncPeriod.Duration, "")...)
	if c.SyncPeriod.Duration > 0 && c.MinSyncPeriod.Duration > c.SyncPeriod.Duration {
		errs = append(errs, field.Invalid(field.NewPath("minSyncPeriod"), c.MinSyncPeriod.Duration.String(), "must not be greater than syncPeriod, which is "+c.SyncPeriod.Duration.String()))
	}
	if c.ConfigSyncPeriod.Duration <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("configSyncPeriod"), c.ConfigSyncPeriod.Duration.String(), wantPositive))
	}
	return errs
}

func validateDetectLocal(c *KubeProxyConfiguration) field.ErrorList {
	path := field.NewPath("detectLocal")
	switch c.DetectLocalMode {
	case LocalModeClusterCIDR:
		return validateClusterCIDRs(c.DetectLocal.ClusterCIDRs, path.Child("clusterCIDRs"))
	case LocalModeNodeCIDR:
		return nil
	case LocalModeBridgeInterface:
		return validateInterface(c.DetectLocal.BridgeInterface, c.DetectLocalMode, path.Child("bridgeInterface"))
	case LocalModeInterfaceNamePrefix:
		return validateInterface(c.DetectLocal.InterfaceNamePrefix, c.DetectLocalMode, path.Child("interfaceNamePrefix"))
	}
	return field.ErrorList{field.NotSupported(field.NewPath("detectLocalMode"), c.DetectLocalMode,
		[]LocalMode{LocalModeClusterCIDR, LocalModeNodeCIDR, LocalModeBridgeInterface, LocalModeInterfaceNamePrefix})}
}

func validateClusterCIDRs(cidrs []string, path *field.Path) (errs field.ErrorList) {
	errs = validateCIDRs(cidrs, path)
	if n := len(cidrs); len(errs) == 0 &&
		(n > 2 || n == 2 && netutils.IsIPv6CIDRString(cidrs[0]) == netutils.IsIPv6CIDRString(cidrs[1])) {
		errs = append(errs, field.Invalid(path, cidrs, "must have at most one CIDR of each IP family"))
	}
	return errs
}

func validateCIDRs(cidrs []string, path *field.Path) (errs field.ErrorList) {
	for i, cidr := range cidrs {
		if _, _, err := netutils.ParseCIDRSloppy(cidr); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), cidr, wantCIDR))
		}
	}
	return errs
}

// validateInterface checks the name of an interface, or a prefix of names. The kernel allows 15 bytes.
func validateInterface(name string, mode LocalMode, path *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "must be set, detectLocalMode "+string(mode)+" needs it")}
	case len(name) > 15:
		return field.ErrorList{field.Invalid(path, name, "must be at most 15 bytes long, as interface names are")}
	}
	return nil
}

func validateNodePortAddresses(addresses []string, path *field.Path) (errs field.ErrorList) {
	seen := map[string]bool{}
	for i, address := range addresses {
		switch address {
		case NodePortAddressesPrimary, NodePortAddressesLocalhost, NodePortAddressesAll:
			if seen[address] {
				errs = append(errs, field.Invalid(path.Index(i), address, "must be there only once"))
			}
			seen[address] = true
			continue
		}
		if _, _, err := netutils.ParseCIDRSloppy(address); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), address, wantCIDR+`, or "primary", "localhost" or "all"`))
		}
	}
	return errs
}
