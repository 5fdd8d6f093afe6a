package introspect

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"
	kubernetes "k8s.io/component-base/version"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/version"
)

// PublishConfig makes /configz show the configuration that the process runs with, in the version that
// kube-proxy shows. It replaces a configuration published before.
func PublishConfig(c *kubeproxyv1alpha1.KubeProxyConfiguration) error {
	published := c.DeepCopy()
	published.SetGroupVersionKind(kubeproxyv1alpha1.SchemeGroupVersion.WithKind("KubeProxyConfiguration"))
	configz.Delete(kubeproxyv1alpha1.GroupName)
	entry, err := configz.New(kubeproxyv1alpha1.GroupName)
	if err != nil {
		return err
	}
	return entry.Set(published)
}

// The pages /flagz and /statusz exist as text only. k8s.io/apiserver/pkg/server has them as objects
// too, but with it the kube-proxy command grows from 32 to 59 MB and takes 13 MB more memory when it starts.

const pageHeader = "\nkube-proxy %s\nWarning: This page is for people. Its form may change.\n\n"

// flagz shows all flags of the command line with their values.
func flagz(flags *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, pageHeader, "flagz")
	flags.VisitAll(func(f *pflag.Flag) { // by name
		value := f.Value.String()
		if len(f.Annotations["classified"]) > 0 {
			value = "CLASSIFIED"
		}
		fmt.Fprintf(&b, "%s=%s\n", f.Name, value)
	})
	return b.String()
}

// statusz shows start time, versions, and the other pages. The binary version is that of the kube-proxy that this
// program stands for and its own; the emulation version is the minor version of the libraries.
func statusz(pages []string) string {
	start := legacyregistry.GetProcessStart()
	return fmt.Sprintf(pageHeader+"Started: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n", "statusz",
		start.Format(time.UnixDate), time.Since(start).Truncate(time.Second), runtime.Version(), strings.TrimPrefix(version.Full(), "v"),
		kubernetes.DefaultKubeBinaryVersion, strings.Join(pages, " "))
}
