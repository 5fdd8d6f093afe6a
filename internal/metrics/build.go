package metrics

import (
	"runtime"

	"k8s.io/component-base/metrics"

	"github.com/nftproxy/nftproxy/internal/version"
)

var buildInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name: "nftproxy_build_info",
	Help: "1; the labels have the version of nftproxy, of the kube-proxy that it replaces, and of Go", StabilityLevel: metrics.ALPHA,
}, []string{"version", "kube_proxy_version", "go_version"})

// showBuildInfo says in the metrics what was built.
func showBuildInfo() {
	buildInfo.WithLabelValues(version.Own(), version.KubeProxy(), runtime.Version()).Set(1)
}
