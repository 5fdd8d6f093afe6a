package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestRESTConfig(t *testing.T) {
	t.Run("a bad kubeconfig is named", testBadKubeconfigIsNamed)
	t.Run("other bad configurations are refused", testOtherBadConfigs)
	t.Run("settings of the connection are passed on", testConnectionSettings)
	t.Run("defaults", testDefaults)
}

func testBadKubeconfigIsNamed(t *testing.T) {
	tests := map[string]struct {
		content string
		missing bool
		want    string
	}{
		"no such file":           {missing: true, want: "no such file"},
		"empty":                  {content: "", want: "names no API server"},
		"not YAML":               {content: "clusters: [", want: "yaml"},
		"unknown context":        {content: strings.Replace(goodKubeconfig, "current-context: x", "current-context: other", 1), want: "context was not found for specified context: other"},
		"unknown cluster":        {content: strings.Replace(goodKubeconfig, "cluster: c,", "cluster: d,", 1), want: `cluster "d"`},
		"certificate not found":  {content: strings.Replace(goodKubeconfig, "token: secret", "client-certificate: no.crt, client-key: no.key", 1), want: "no.crt"},
		"certificate is garbage": {content: strings.Replace(goodKubeconfig, "cluster: {server", "cluster: {certificate-authority-data: Z2FyYmFnZQ==, server", 1), want: "certificate"},
		"two credentials":        {content: strings.Replace(goodKubeconfig, "token: secret", "token: secret, username: a, password: b", 1), want: "authentication"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if !test.missing {
				if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := New(Config{Kubeconfig: path, NodeName: thisNode})
			if err == nil {
				t.Fatal("New succeeded")
			}
			for _, text := range []string{path, test.want} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}

func testOtherBadConfigs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(goodKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	tests := map[string]struct {
		config Config
		want   string
	}{
		"no node name":     {Config{Kubeconfig: path}, "no node name"},
		"proxy name":       {Config{Kubeconfig: path, NodeName: thisNode, ServiceProxyName: "a b"}, `service proxy name "a b"`},
		"not in a cluster": {Config{NodeName: thisNode}, "no kubeconfig given"},
		"bad master":       {Config{NodeName: thisNode, Master: "https://[::1"}, "https://[::1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(test.config)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func testConnectionSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(goodKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		config Config
		host   string
		token  string
	}{
		"from the file":           {Config{Kubeconfig: path}, "https://192.0.2.1:6443", "secret"},
		"another master":          {Config{Kubeconfig: path, Master: "https://192.0.2.2:443"}, "https://192.0.2.2:443", "secret"},
		"a master without a file": {Config{Master: "http://127.0.0.1:8080"}, "http://127.0.0.1:8080", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			settings, err := connectionSettings(test.config)
			if err != nil {
				t.Fatal(err)
			}
			if settings.Host != test.host || settings.BearerToken != test.token {
				t.Errorf("host %q with token %q, want %q with %q", settings.Host, settings.BearerToken, test.host, test.token)
			}
		})
	}
}

func testDefaults(t *testing.T) {
	got := Config{NodeName: thisNode}.withDefaults()
	want := Config{
		NodeName:           thisNode,
		ContentType:        "application/vnd.kubernetes.protobuf",
		AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		QPS:                5,
		Burst:              10,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}
