package v1alpha2

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	logsapi "k8s.io/component-base/logs/api/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// The default ports, which are kube-proxy's.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// defaultMasqueradeBit is the default of all modes.
const defaultMasqueradeBit int32 = 14

// SetDefaults fills in unset fields, with the defaults of kube-proxy v1.37 except where the fields
// say otherwise.
func SetDefaults(c *KubeProxyConfiguration) {
	c.APIVersion, c.Kind = APIVersion, Kind
	setModeDefaults(c)
	setAddressDefaults(c)
	setClientDefaults(c)
	setConntrackDefaults(&c.Linux.Conntrack)
	setDefault(&c.Linux.OOMScoreAdj, -999)
	setDefault(&c.BindAddressHardFail, true)
	setDefault(&c.ConfigHardFail, true)
	setPeriod(&c.SyncPeriod, 30*time.Second)
	setPeriod(&c.ConfigSyncPeriod, 15*time.Minute)
	c.IPTables.setDefaults()
	c.IPVS.setDefaults()
	c.NFTables.setDefaults()
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

func setModeDefaults(c *KubeProxyConfiguration) {
	if c.Mode == "" {
		c.Mode = ModeNFTables
	}
	if c.Mode == ModeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{NodePortAddressesPrimary}
	}
	if c.DetectLocalMode == "" {
		c.DetectLocalMode = LocalModeClusterCIDR
	}
}

func setAddressDefaults(c *KubeProxyConfiguration) {
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if len(c.NodeIPOverride) > 0 && netutils.IsIPv6String(c.NodeIPOverride[0]) {
		healthz, metrics = "::", "::1"
	}
	if c.HealthzBindAddress == "" {
		c.HealthzBindAddress = healthz
	}
	if c.MetricsBindAddress == "" {
		c.MetricsBindAddress = metrics
	}
	c.HealthzBindAddress = WithPort(c.HealthzBindAddress, HealthzPort)
	c.MetricsBindAddress = WithPort(c.MetricsBindAddress, MetricsPort)
}

// WithPort adds a port to an IP address. It returns anything else, such as an address that has a
// port already, as it is.
func WithPort(address string, port int) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

func setClientDefaults(c *KubeProxyConfiguration) {
	if c.ClientConnection.ContentType == "" {
		c.ClientConnection.ContentType = runtime.ContentTypeProtobuf
	}
	if c.ClientConnection.QPS == 0 {
		c.ClientConnection.QPS = 5
	}
	if c.ClientConnection.Burst == 0 {
		c.ClientConnection.Burst = 10
	}
}

func setConntrackDefaults(c *ConntrackConfiguration) {
	setDefault(&c.MaxPerCore, 32*1024)
	setDefault(&c.Min, 128*1024)
	setDefault(&c.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setDefault(&c.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

func setDefault[T any](p **T, value T) {
	if *p == nil {
		*p = ptr.To(value)
	}
}

func setPeriod(d *metav1.Duration, value time.Duration) {
	if d.Duration == 0 {
		d.Duration = value
	}
}
