// Package version says which version of nftproxy this is, and which kube-proxy it stands for.
//
// Other components of Kubernetes and their alerts go by kube-proxy's version: kubernetes-mixin's
// KubeVersionMismatch counts the minor versions that components report in the label git_version of
// kubernetes_build_info. So that label, and --version, begin with the version of the kube-proxy that this program
// stands for, and end with its own: v1.37.2+nftproxy-v0.1.0.
package version

import (
	"strings"

	kubernetes "k8s.io/component-base/version"
)

// own is set by the Makefile. It also sets the version that k8s.io/component-base reports.
var own string

// Own returns the version of nftproxy, such as "v0.1.0"; "unknown" for a program that was built by hand.
func Own() string {
	if own == "" {
		return "unknown"
	}
	return own
}

// KubeProxy returns the version of the kube-proxy that this program stands for, such as "v1.37.2"; for
// a program that was built by hand only the minor version, "v1.37".
func KubeProxy() string {
	if version, _, ours := strings.Cut(kubernetes.Get().GitVersion, infix); ours {
		return version
	}
	return "v" + kubernetes.DefaultKubeBinaryVersion
}

// Full returns both as other components of Kubernetes write a version that somebody added
// to: "v1.37.2+nftproxy-v0.1.0".
func Full() string { return KubeProxy() + infix + Own() }

// infix stands between the two versions, here and in the Makefile.
const infix = "+nftproxy-"
