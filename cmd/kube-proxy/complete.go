package main

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// complete makes a valid configuration of the flags, or of the configuration file, beside which most flags have no
// effect.
func (o *options) complete(flags *pflag.FlagSet) error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.configFile != "" {
		return o.completeFromFile(flags)
	}
	return o.completeFromFlags(flags)
}

func (o *options) completeFromFile(flags *pflag.FlagSet) error {
	file, err := config.Load(o.configFile)
	if err != nil {
		return err
	}
	if err := overrideLogging(flags, &file.Config.Logging); err != nil {
		return err
	}
	for _, warning := range file.Warnings {
		o.warn("configuration %s: %s", file.Path, warning)
	}
	var overridden []string
	for _, f := range o.changedFlags(flags, func(f flagInfo) bool { return !f.besideConfig }) {
		overridden = append(overridden, "--"+f.name)
	}
	if len(overridden) > 0 {
		o.warn("%s: ignored, because --config is given; set what they mean in the file", strings.Join(overridden, ", "))
	}
	o.warnIgnored(flags, func(f flagInfo) bool { return f.ignored() != "" && f.besideConfig })
	o.file, o.config = file, file.Config
	o.overrideHostname()
	o.overrideLeftovers(flags)
	if err := o.nodeLocal.apply(o.config); err != nil {
		return err
	}
	if err := config.ValidateNodeLocal(o.config, o.flagNames()); err != nil {
		return err
	}
	return o.checkOneSource(flags)
}

// overrideLeftovers applies the flags for leftovers.
func (o *options) overrideLeftovers(flags *pflag.FlagSet) {
	linux := &o.config.Linux
	linux.Leftovers = cmp.Or(o.leftovers, linux.Leftovers)
	if flags.Changed("leftovers-drain-timeout") {
		linux.LeftoversDrainTimeout = &metav1.Duration{Duration: o.drainTimeout}
	}
}

func (o *options) completeFromFlags(flags *pflag.FlagSet) error {
	c := o.config
	if flags.Changed("bind-address") && o.bindAddress != "" {
		c.NodeIPOverride = []string{o.bindAddress}
	}
	if flags.Changed("cluster-cidr") && o.clusterCIDR != "" {
		c.DetectLocal.ClusterCIDRs = strings.Split(o.clusterCIDR, ",")
	}
	*c.IPVS.MasqueradeBit = *c.IPTables.MasqueradeBit
	if !flags.Changed("proxy-mode") {
		// As in a v1alpha1 file, where kube-proxy takes no mode for iptables.
		*c.NFTables.MasqueradeBit = *c.IPTables.MasqueradeBit
	} else if flags.Changed("iptables-masquerade-bit") {
		o.warn("--iptables-masquerade-bit: ignored, because --proxy-mode is given; set nftables.masqueradeBit in a file instead")
	}
	o.warnIgnored(flags, func(f flagInfo) bool { return f.ignored() != "" })
	o.overrideHostname()
	o.overrideLeftovers(flags)
	if err := o.nodeLocal.apply(c); err != nil {
		return err
	}
	v1alpha2.SetDefaults(c)
	// After SetDefaults, which would replace the empty address of a server that is off.
	c.HealthzBindAddress = serverAddress(flags, o.healthzAddress, "healthz-port", o.healthzPort)
	c.MetricsBindAddress = serverAddress(flags, o.metricsAddress, "metrics-port", o.metricsPort)
	o.warnings = append(o.warnings, config.Warnings(c, o.flagNames())...)
	if err := config.Validate(c, o.flagNames()); err != nil {
		return err
	}
	return o.checkOneSource(flags)
}

func (o *options) warn(format string, args ...any) {
	o.warnings = append(o.warnings, fmt.Sprintf(format, args...))
}

// warnIgnored warns of the flags on the command line that meet a condition, with the reason why they have no effect.
func (o *options) warnIgnored(flags *pflag.FlagSet, condition func(flagInfo) bool) {
	for _, f := range o.changedFlags(flags, condition) {
		o.warn("--%s: ignored, because %s", f.name, f.ignored())
	}
}

func (o *options) overrideHostname() {
	if name := strings.TrimSpace(o.hostname); name != "" {
		o.config.HostnameOverride = name
	}
}

// serverAddress combines an address with the deprecated flag for its port.
func serverAddress(flags *pflag.FlagSet, address, portFlag string, port int32) string {
	if port == 0 {
		return ""
	}
	if host, _, err := net.SplitHostPort(address); err == nil && flags.Changed(portFlag) {
		return net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return v1alpha2.WithPort(address, int(port))
}

// changedFlags returns the flags on the command line that meet a condition.
func (o *options) changedFlags(flags *pflag.FlagSet, condition func(flagInfo) bool) (changed []flagInfo) {
	for _, f := range o.flagTable() {
		if flags.Changed(f.name) && condition(f) {
			changed = append(changed, f)
		}
	}
	return changed
}

// overrideLogging applies the logging flags to a file's configuration. --vmodule comes before the file's patterns.
func overrideLogging(from *pflag.FlagSet, to *logsapi.LoggingConfiguration) error {
	before := to.DeepCopy()
	onFile := pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(to, onFile)
	*to = *before // undoes a reset by AddFlags
	to.VModule = nil
	var err error
	onFile.VisitAll(func(f *pflag.Flag) {
		if given := from.Lookup(f.Name); given.Changed && err == nil {
			err = f.Value.Set(given.Value.String())
		}
	})
	to.VModule = append(to.VModule, before.VModule...)
	return err
}
