package ruledump_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/introspect"
	"github.com/nftproxy/nftproxy/internal/ruledump"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
)

func TestRunningProxy(t *testing.T) {
	t.Run("has the node's name and the settings", testRunningProxyHasNameAndSettings)
	t.Run("is not believed if it is something else", testRunningProxyIsNotBelieved)
	t.Run("that is away is an error", func(t *testing.T) {
		if p, err := ruledump.RunningProxy(t.Context(), "127.0.0.1:1"); err == nil || !strings.HasPrefix(err.Error(), "no proxy answers at http://127.0.0.1:1/configz: ") {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// The proxy's own handler answers.
func testRunningProxyHasNameAndSettings(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for override, want := range map[string]string{"": strings.ToLower(host), " Node-1.example ": "node-1.example"} {
		published := &kubeproxyv1alpha1.KubeProxyConfiguration{Mode: "nftables", HostnameOverride: override, ClusterCIDR: "10.244.0.0/16", NodePortAddresses: []string{"10.0.0.0/8"}}
		if err := introspect.PublishConfig(published); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(introspect.Handler(introspect.Options{}))
		defer server.Close()
		p, err := ruledump.RunningProxy(t.Context(), strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if p.Node != want {
			t.Errorf("hostnameOverride %q: node %q, want %q", override, p.Node, want)
		}
		settings, err := config.Compiler(p.Config)
		if err != nil || len(settings.DetectLocal.CIDRs) != 1 || settings.DetectLocal.CIDRs[0].String() != "10.244.0.0/16" || !slices.Equal(p.Config.NodePortAddresses, published.NodePortAddresses) {
			t.Errorf("settings %+v, %v", settings, err)
		}
	}
}

func testRunningProxyIsNotBelieved(t *testing.T) {
	const group = `{"kubeproxy.config.k8s.io": `
	answer := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for _, tt := range []struct {
		name, want string
		serve      http.HandlerFunc
	}{
		{"not found", "no proxy answers at URL: status 404 Not Found", http.NotFound},
		{"a redirect", "no proxy answers at URL: status 302 Found", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }},
		{"a page", "what answers at URL is no proxy: the answer has no kubeproxy.config.k8s.io", answer("<html>")},
		{"another component", "what answers at URL is no proxy: the answer has no kubeproxy.config.k8s.io", answer(`{"kubeletconfig": {"kind": "KubeletConfiguration"}}`)},
		{"no configuration", `what answers at URL is no nftproxy: apiVersion "", kind "": must be`, answer(group + `{"clusterCIDR": "10.0.0.0/8"}}`)},
		{"invalid settings", "what answers at URL is no nftproxy: clusterCIDR: Invalid value", answer(group + `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "clusterCIDR": "banana"}}`)},
		{"another mode", `what answers at URL is no nftproxy: mode: this kube-proxy does not have the mode "ipvs"`, answer(group + `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "ipvs"}}`)},
		{"no name of a Node", `what answers at URL is no proxy: hostnameOverride "\x1b[2j" is no name of a Node`, answer(group + `{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables", "hostnameOverride": "\u001b[2J"}}`)},
		{"an endless answer", "no proxy answers at URL: the answer has more than 1048576 bytes", func(w http.ResponseWriter, _ *http.Request) {
			for block := make([]byte, 1<<16); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}},
		{"no answer", "no proxy answers at URL: no answer within 2s", func(http.ResponseWriter, *http.Request) { <-over }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tt.serve)
			t.Cleanup(server.CloseClientConnections)
			p, err := ruledump.RunningProxy(t.Context(), strings.TrimPrefix(server.URL, "http://"))
			if want := strings.ReplaceAll(tt.want, "URL", server.URL+"/configz"); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%+v, %v; want %s", p, err, want)
			}
		})
	}
}
