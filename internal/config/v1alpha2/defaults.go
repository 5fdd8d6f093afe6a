package v1alpha2

import (
	"cmp"
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

// defaultDrainTimeout is longer than most pools keep a connection.
const defaultDrainTimeout = time.Hour

// SetDefaults fills in unset fields, with the defaults of kube-proxy v1.37 unless the fields say otherwise.
func SetDefaults(c *KubeProxyConfiguration) {
	c.APIVersion, c.Kind = APIVersion, Kind
	setDefault(&c.Mode, ModeNFTables)
	if c.Mode == ModeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{NodePortAddressesPrimary}
	}
	setDefault(&c.DetectLocalMode, LocalModeClusterCIDR)
	setAddressDefaults(c)
	setDefault(&c.ClientConnection.ContentType, runtime.ContentTypeProtobuf)
	setDefault(&c.ClientConnection.QPS, 5)
	setDefault(&c.ClientConnection.Burst, 10)
	conntrack := &c.Linux.Conntrack
	setDefault(&conntrack.MaxPerCore, ptr.To[int32](32*1024))
	setDefault(&conntrack.Min, ptr.To[int32](128*1024))
	setDefault(&conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	setDefault(&conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})
	setDefault(&c.Linux.OOMScoreAdj, ptr.To[int32](-999))
	setDefault(&c.Linux.Leftovers, LeftoversRemove)
	setDefault(&c.Linux.LeftoversDrainTimeout, &metav1.Duration{Duration: defaultDrainTimeout})
	setDefault(&c.BindAddressHardFail, ptr.To(true))
	setDefault(&c.ConfigHardFail, ptr.To(true))
	setDefault(&c.SyncPeriod.Duration, 30*time.Second)
	setDefault(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	for _, bit := range []**int32{&c.IPTables.MasqueradeBit, &c.IPVS.MasqueradeBit, &c.NFTables.MasqueradeBit} {
		setDefault(bit, ptr.To(defaultMasqueradeBit))
	}
	setDefault(&c.IPTables.LocalhostNodePorts, ptr.To(false))
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

func setDefault[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

func setAddressDefaults(c *KubeProxyConfiguration) {
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if len(c.NodeIPOverride) > 0 && netutils.IsIPv6String(c.NodeIPOverride[0]) {
		healthz, metrics = "::", "::1"
	}
	c.HealthzBindAddress = WithPort(cmp.Or(c.HealthzBindAddress, healthz), HealthzPort)
	c.MetricsBindAddress = WithPort(cmp.Or(c.MetricsBindAddress, metrics), MetricsPort)
}

// WithPort adds a port to an IP address. It returns anything else, such as an address with a port, as it is.
func WithPort(address string, port int) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
