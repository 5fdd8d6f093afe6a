package leftovers

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// CNIDir has the configurations of network plugins.
const CNIDir = "/etc/cni/net.d"

// cniDir is replaced by tests.
var cniDir = CNIDir

// maxCNIFile bounds the bytes of a configuration that are read.
const maxCNIFile = 1 << 20

// MarkChainUsers returns the files in CNIDir, or in a copy of it, at most 100, that tell the CNI plugin portmap to jump
// to KUBE-MARK-MASQ (externalSetMarkChain). While no pod has a host port, no rule shows that. Without the chain, portmap
// fails, and with it each new pod that has a host port. Files that cannot be read are left out.
func MarkChainUsers(dir string) (files []string) {
	all, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is valid
	for _, name := range all[:min(len(all), 100)] {
		if usesMarkChain(name) {
			files = append(files, name)
		}
	}
	return files
}

func usesMarkChain(name string) bool {
	if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
		return false
	}
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	type plugin struct{ ExternalSetMarkChain string }
	var config struct {
		plugin           // of a .conf
		Plugins []plugin // of a .conflist
	}
	if err := json.NewDecoder(io.LimitReader(file, maxCNIFile)).Decode(&config); err != nil {
		return false
	}
	return slices.Contains(append(config.Plugins, config.plugin), plugin{markChain})
}
