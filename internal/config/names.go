package config

import (
	"strings"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// Names maps fields of v1alpha2, and everything below them, to the user's names: paths of
// v1alpha1, or flags with dashes.
type Names map[string]string

// nameOf returns the user's name of a field such as "linux.conntrack.min" or "nodeIPOverride[0]".
func (n Names) nameOf(path string) string {
	for end := len(path); end > 0; end = strings.LastIndexAny(path[:end], ".[") {
		if name := n[path[:end]]; name != "" {
			rest := path[end:]
			if strings.HasPrefix(rest, "[") || strings.HasPrefix(name, "--") {
				return name // a list there, one value here
			}
			return name + rest
		}
	}
	return path
}

// renamed pairs the fields that the two versions call differently. v1alpha1 has some for each mode.
var renamed = []struct{ v1alpha1, v1alpha2 string }{
	{"bindAddress", "nodeIPOverride"},
	{"clusterCIDR", "detectLocal.clusterCIDRs"},
	{"conntrack", "linux.conntrack"},
	{"oomScoreAdj", "linux.oomScoreAdj"},
	{"windowsRunAsService", "windows.runAsService"},
	{"iptables.masqueradeBit", "ipvs.masqueradeBit"},
	{"iptables.masqueradeAll", "linux.masqueradeAll"},
	{"iptables.minSyncPeriod", "minSyncPeriod"},
	{"iptables.syncPeriod", "syncPeriod"},
	{"ipvs.minSyncPeriod", "minSyncPeriod"},
	{"ipvs.syncPeriod", "syncPeriod"},
	{"nftables.masqueradeAll", "linux.masqueradeAll"},
	{"nftables.minSyncPeriod", "minSyncPeriod"},
	{"nftables.syncPeriod", "syncPeriod"},
}

// v1alpha1Names returns v1alpha1's names, in a mode.
func v1alpha1Names(mode v1alpha2.Mode) Names {
	names := Names{"linux": "conntrack, oomScoreAdj and nftables.masqueradeAll", "windows": "windowsRunAsService"}
	for _, f := range renamed {
		names[f.v1alpha2] = f.v1alpha1 // the last one counts, of the mode nftables
	}
	switch mode {
	case "", v1alpha2.ModeNFTables:
	case v1alpha2.ModeIPVS:
		names["syncPeriod"], names["minSyncPeriod"] = "ipvs.syncPeriod", "ipvs.minSyncPeriod"
	default:
		names["syncPeriod"], names["minSyncPeriod"] = "iptables.syncPeriod", "iptables.minSyncPeriod"
	}
	return names
}

// v1alpha2Names returns v1alpha2's names of v1alpha1's fields.
func v1alpha2Names() Names {
	names := Names{}
	for _, f := range renamed {
		names[f.v1alpha1] = f.v1alpha2
	}
	return names
}
