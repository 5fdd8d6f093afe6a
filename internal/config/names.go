package config

import (
	"strings"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// Names maps fields of v1alpha2 to the user's names: paths of v1alpha1, or flags with their
// dashes. A name holds for everything below the field too. Other fields keep their names.
type Names map[string]string

// of returns the user's name of a field such as "linux.conntrack.min" or "nodeIPOverride[0]".
func (n Names) of(path string) string {
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

// v1alpha1Names returns v1alpha1's names, in a mode.
func v1alpha1Names(mode v1alpha2.Mode) Names {
	names := Names{
		"linux.conntrack":          "conntrack",
		"linux.oomScoreAdj":        "oomScoreAdj",
		"linux.masqueradeAll":      "nftables.masqueradeAll",
		"windows.runAsService":     "windowsRunAsService",
		"detectLocal.clusterCIDRs": "clusterCIDR",
		"nodeIPOverride":           "bindAddress",
		"ipvs.masqueradeBit":       "iptables.masqueradeBit",
		"syncPeriod":               "nftables.syncPeriod",
		"minSyncPeriod":            "nftables.minSyncPeriod",
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

// Names of the fields of one version in the other, for users who mix them up.
var (
	v1alpha1Renamed = map[string]string{
		"bindAddress":            "nodeIPOverride",
		"clusterCIDR":            "detectLocal.clusterCIDRs",
		"conntrack":              "linux.conntrack",
		"iptables.masqueradeAll": "linux.masqueradeAll",
		"iptables.minSyncPeriod": "minSyncPeriod",
		"iptables.syncPeriod":    "syncPeriod",
		"ipvs.minSyncPeriod":     "minSyncPeriod",
		"ipvs.syncPeriod":        "syncPeriod",
		"nftables.masqueradeAll": "linux.masqueradeAll",
		"nftables.minSyncPeriod": "minSyncPeriod",
		"nftables.syncPeriod":    "syncPeriod",
		"oomScoreAdj":            "linux.oomScoreAdj",
		"windowsRunAsService":    "windows.runAsService",
	}
	v1alpha2Renamed = map[string]string{
		"detectLocal.clusterCIDRs": "clusterCIDR",
		"ipvs.masqueradeBit":       "iptables.masqueradeBit",
		"linux":                    "conntrack, oomScoreAdj and nftables.masqueradeAll",
		"minSyncPeriod":            "nftables.minSyncPeriod",
		"nodeIPOverride":           "bindAddress",
		"syncPeriod":               "nftables.syncPeriod",
		"windows":                  "windowsRunAsService",
	}
)
