package config

import (
	"fmt"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// missing returns warnings about settings without which Services work less well than their users
// expect. kube-proxy warns of the same.
func missing(c *v1alpha2.KubeProxyConfiguration, names Names) []string {
	if c.DetectLocalMode != v1alpha2.LocalModeClusterCIDR || len(c.DetectLocal.ClusterCIDRs) > 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: not set, so pods cannot be told from clients outside the cluster: "+
		"no client of a ClusterIP is masqueraded, and externalTrafficPolicy Local applies to pods too; set the pods' range, or choose another %s",
		names.of("detectLocal.clusterCIDRs"), names.of("detectLocalMode"))}
}
