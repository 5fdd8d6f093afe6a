package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
)

// The DaemonSet has the privileges and mounts of the proxy in the place of kubeadm's, reads the configuration of network
// plugins too, and has flags that the program knows.
func TestPreflight(t *testing.T) {
	set := get[*appsv1.DaemonSet](t, kustomize(t, "kustomize/preflight"), "DaemonSet nftproxy-preflight")
	proxy := daemonSets(t)["in the place of kubeadm's"]
	pod, want := set.Spec.Template.Spec, proxy.Spec.Template.Spec
	container := pod.Containers[0]
	mounts := append(want.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "cni", MountPath: leftovers.CNIDir, ReadOnly: true})
	volumes := append(want.Volumes, corev1.Volume{Name: "cni", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: leftovers.CNIDir, Type: new(corev1.HostPathDirectoryOrCreate)},
	}})
	for _, same := range []struct{ got, want any }{
		{container.SecurityContext, want.Containers[0].SecurityContext}, {container.VolumeMounts, mounts},
		{pod.Volumes, volumes}, {pod.ServiceAccountName, want.ServiceAccountName}, {pod.HostNetwork, want.HostNetwork},
		{pod.Tolerations, want.Tolerations}, {set.Namespace, proxy.Namespace}, {container.Image, want.Containers[0].Image},
	} {
		if diff := cmp.Diff(same.want, same.got); diff != "" {
			t.Errorf("(-proxy +preflight):\n%s", diff)
		}
	}
	if !selects(t, set.Spec.Selector, set) || selects(t, proxy.Spec.Selector, set) {
		t.Errorf("selector %v, labels of the pods %v", set.Spec.Selector, set.Spec.Template.Labels)
	}
	command, flags, err := verb.New().Find(container.Command[1:])
	if err == nil {
		err = command.ParseFlags(flags)
	}
	if err != nil || command.Name() != "preflight" || command.Flag("stay").Value.String() != "true" {
		t.Errorf("%v: %v", container.Command, err)
	}
}
