package deploy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
)

// serverAddress stands in the overlay split where an operator has to set where the server is.
const serverAddress = "control-plane.example:10264"

func TestSplitOverlay(t *testing.T) {
	all := kustomize(t, "kustomize/overlays/split")
	backend := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec
	server := get[*appsv1.Deployment](t, all, "Deployment nftproxy-node-local-server").Spec.Template.Spec
	t.Run("the program refuses to run it without the pods' range, and nothing else is missing", func(t *testing.T) {
		text := projected(t, all, backend).Data["config.conf"]
		if _, err := config.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), unsetPodsRange) {
			t.Errorf("error %v, want one with %q", err, unsetPodsRange)
		}
		file, err := config.Parse([]byte(strings.ReplaceAll(text, unsetPodsRange, podsRange)))
		if err != nil {
			t.Fatal(err)
		}
		if len(file.Warnings) > 0 {
			t.Errorf("warnings %q", file.Warnings)
		}
	})
	t.Run("settings are those of the overlay standalone, and the program starts with them", func(t *testing.T) {
		parse := func(text string) *v1alpha2.KubeProxyConfiguration {
			file, err := config.Parse([]byte(strings.ReplaceAll(text, unsetPodsRange, podsRange)))
			if err != nil {
				t.Fatal(err)
			}
			return file.Config
		}
		split := parse(projected(t, all, backend).Data["config.conf"])
		if err := config.CheckSource(split, nil); err != nil {
			t.Error(err)
		}
		standalone := parse(configMapOf(t, kustomize(t, "kustomize/overlays/standalone")).Data["config.conf"])
		// v1alpha1 and v1alpha2 differ in these defaults.
		differ := cmpopts.IgnoreFields(v1alpha2.KubeProxyConfiguration{}, "TypeMeta", "NodeLocal", "ClientConnection.Kubeconfig", "BindAddressHardFail", "ConfigHardFail", "IPTables")
		if diff := cmp.Diff(standalone, split, differ); diff != "" {
			t.Errorf("(-standalone +split):\n%s", diff)
		}
	})
	t.Run("the server has no privilege, the backend no account", func(t *testing.T) {
		want := &corev1.SecurityContext{
			Privileged:               new(false),
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			RunAsNonRoot:             new(true),
			RunAsUser:                new(int64(65532)),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		if diff := cmp.Diff(want, server.Containers[0].SecurityContext); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if *backend.AutomountServiceAccountToken || backend.ServiceAccountName != "default" {
			t.Errorf("the backend's pods use the account %s", backend.ServiceAccountName)
		}
		standalone := daemonSets(t)["kustomize"].Spec.Template.Spec
		differ := cmpopts.IgnoreFields(corev1.PodSpec{}, "ServiceAccountName", "AutomountServiceAccountToken", "Volumes")
		if diff := cmp.Diff(standalone, backend, differ); diff != "" {
			t.Errorf("the backend's pod (-standalone +split):\n%s", diff)
		}
	})
	t.Run("the server's account has the role", func(t *testing.T) {
		account := get[*corev1.ServiceAccount](t, all, "ServiceAccount nftproxy-node-local-server")
		binding := get[*rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding nftproxy-node-local-server")
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}
		if diff := cmp.Diff(want, binding.Subjects); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if server.ServiceAccountName != account.Name {
			t.Errorf("the pods use %s", server.ServiceAccountName)
		}
	})
	t.Run("server and backend apply the rules", func(t *testing.T) { checkSplit(t, newCluster(t), all) })
}

// TestSplitChart is TestSplitOverlay for the chart with nodeLocalServer.
func TestSplitChart(t *testing.T) {
	c := newCluster(t)
	all := chart(t, needed(values{"apiServer": c.api.URL(), "nodeLocalServer": values{"enabled": true, "address": "127.0.0.1"}}))
	overlay := kustomize(t, "kustomize/overlays/split")
	t.Run("server and role are those of the overlay", func(t *testing.T) {
		for _, key := range []string{"Deployment nftproxy-node-local-server", "ClusterRole nftproxy-node-local-server", "ClusterRoleBinding nftproxy-node-local-server", "ServiceAccount nftproxy-node-local-server"} {
			of := func(all objects) any {
				switch o := all[key].DeepCopyObject().(type) {
				case *appsv1.Deployment:
					sources := o.Spec.Template.Spec.Volumes[0].Projected.Sources
					sources[0].ConfigMap.Name = "" // that of kustomize has a hash
					return o.Spec
				case *rbacv1.ClusterRole:
					return o.Rules
				case *rbacv1.ClusterRoleBinding:
					return o.Subjects
				default:
					return o.(*corev1.ServiceAccount).AutomountServiceAccountToken
				}
			}
			if diff := cmp.Diff(of(overlay), of(all), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-overlay +chart):\n%s", key, diff)
			}
		}
		if len(all) != 9 { // with two of helm test
			t.Errorf("the chart makes %v", all.names())
		}
	})
	t.Run("server and backend apply the rules", func(t *testing.T) { checkSplit(t, c, all) })
}

// checkSplit runs the pods of a server and of a backend.
func checkSplit(t *testing.T, c cluster, all objects) {
	t.Helper()
	backend := get[*appsv1.DaemonSet](t, all, "DaemonSet nftproxy").Spec.Template.Spec
	server := get[*appsv1.Deployment](t, all, "Deployment nftproxy-node-local-server").Spec.Template.Spec
	ca, err := apiservertest.NewAuthority("nftproxy", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	filled := func(spec corev1.PodSpec) *corev1.ConfigMap {
		files := projected(t, all, spec)
		for name, text := range files.Data {
			files.Data[name] = strings.NewReplacer(apiServer, c.api.URL(), unsetPodsRange, podsRange, serverAddress, "127.0.0.1:10264").Replace(text)
		}
		issue(t, ca, files.Data)
		return files
	}
	process := newPod(t, c, server, filled(server))
	process.start(t, process.container(server.Containers[0]))
	checkPod(t, newPod(t, c, backend, filled(backend)))
	checkRole(t, c.api.Requests("", ""), get[*rbacv1.ClusterRole](t, all, "ClusterRole nftproxy-node-local-server"))
}

// projected returns the ConfigMap in the projected volume of a pod, which must have a Secret beside it.
func projected(t *testing.T, all objects, spec corev1.PodSpec) *corev1.ConfigMap {
	t.Helper()
	sources := spec.Volumes[0].Projected.Sources
	if len(sources) != 2 || sources[1].Secret == nil {
		t.Fatalf("the volume has %v, want a ConfigMap and a Secret", sources)
	}
	return get[*corev1.ConfigMap](t, all, "ConfigMap "+sources[0].ConfigMap.Name).DeepCopy()
}

// issue adds the files of a Secret of one side.
func issue(t *testing.T, authority *apiservertest.Certificate, files map[string]string) {
	t.Helper()
	side, err := authority.Issue("side", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	files["tls.crt"], files["tls.key"], files["ca.crt"] = string(side.CertPEM()), string(side.KeyPEM()), string(authority.CertPEM())
}
