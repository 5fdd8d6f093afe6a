package introspect

import (
	"k8s.io/component-base/configz"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

// PublishConfig makes /configz show the configuration that the process runs with, in the version that
// kube-proxy shows. It takes the place of one published before.
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
