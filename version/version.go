// Package version says which version of nftproxy this is, and which kube-proxy it stands for.
//
// Other components of Kubernetes and their alerts go by kube-proxy's version: kubernetes-mixin's KubeVersionMismatch counts the
// minor versions that components report in the label git_version of kubernetes_build_info. So that label, and --version,
// begin with the version of the kube-proxy that this program stands for, and end with its own: v1.37.2+nftproxy-v0.1.0.
package version

import (
	"runtime/debug"
	"strings"

	kubernetes "k8s.io/component-base/version"
)

// own is set by the Makefile. It also sets the version that k8s.io/component-base reports.
var own string

// modelModule is the module whose version v0.X.Y belongs to kube-proxy vX.Y.Z: its configuration is kube-proxy's.
const modelModule = "k8s.io/kube-proxy"

// Own returns the version of nftproxy, such as "v0.1.0"; "unknown" for a program that was built by hand.
func Own() string {
	if own == "" {
		return "unknown"
	}
	return own
}

// KubeProxy returns the version of the kube-proxy that this program stands for, such as "v1.37.2".
func KubeProxy() string {
	if version, _, ours := strings.Cut(kubernetes.Get().GitVersion, "+nftproxy-"); ours {
		return version
	}
	return builtWith()
}

// builtWith returns what Go knows of a program that was built by hand.
func builtWith() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range info.Deps {
		if minor, ok := strings.CutPrefix(module.Version, "v0."); ok && module.Path == modelModule {
			return "v1." + minor
		}
	}
	return "unknown"
}
