package introspect_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/introspect"
)

// ask sends a request to a server with the given options and returns the response and its body.
func ask(t *testing.T, server *httptest.Server, method, path, accept, body string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

func get(t *testing.T, server *httptest.Server, path string) (*http.Response, string) {
	t.Helper()
	return ask(t, server, http.MethodGet, path, "", "")
}

func serve(t *testing.T, o introspect.Options) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(introspect.Handler(o))
	t.Cleanup(server.Close)
	return server
}

func everything() introspect.Options {
	flags := pflag.NewFlagSet("kube-proxy", pflag.ContinueOnError)
	flags.String("proxy-mode", "nftables", "")
	flags.Bool("cleanup", false, "")
	flags.String("password", "secret", "")
	if err := flags.SetAnnotation("password", "classified", []string{"true"}); err != nil {
		panic(err)
	}
	return introspect.Options{Profiling: true, Flags: flags, Statusz: true}
}

func TestHandler(t *testing.T) {
	t.Run("serves its pages", testPages)
	t.Run("a CPU profile takes its time", testCPUProfileTakesItsTime)
	t.Run("the log level can be changed", testLogLevelCanBeChanged)
	t.Run("the configuration is published", testConfigurationIsPublished)
	t.Run("flagz and statusz are text for every client", testZPagesAreText)
}

// The status codes, types and bodies of the plain pages are those of kube-proxy v1.37.1.
func testPages(t *testing.T) {
	const plain = "text/plain; charset=utf-8"
	some := func(s string) func(string) bool { return func(body string) bool { return strings.Contains(body, s) } }
	exactly := func(s string) func(string) bool { return func(body string) bool { return body == s } }
	cases := []struct {
		path    string
		options introspect.Options
		code    int
		typ     string
		body    func(string) bool
	}{
		{"/proxyMode", introspect.Options{}, 200, plain, exactly("nftables")},
		{"/healthz", introspect.Options{}, 200, plain, exactly("ok")},
		{"/healthz?verbose", introspect.Options{}, 200, plain, exactly("[+]ping ok\nhealthz check passed\n")},
		{"/healthz/ping", introspect.Options{}, 200, plain, exactly("ok")},
		{"/livez", introspect.Options{}, 404, plain, some("404 page not found")},
		{"/", introspect.Options{}, 404, plain, some("404 page not found")},
		{"/metrics", introspect.Options{}, 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", some("\ngo_goroutines ")},
		{"/metrics/slis", introspect.Options{}, 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", some(`kubernetes_healthcheck{name="ping",type="healthz"} 1`)},
		{"/configz", introspect.Options{}, 200, "application/json", some("{")},
		{"/flagz", introspect.Options{}, 404, plain, some("404")},
		{"/statusz", introspect.Options{}, 404, plain, some("404")},
		{"/debug/pprof/", introspect.Options{}, 404, plain, some("404")},
		{"/debug/pprof/heap", introspect.Options{}, 404, plain, some("404")},
		{"/debug/flags/v", introspect.Options{}, 404, plain, some("404")},
		{"/debug/pprof", everything(), 200, "text/html; charset=utf-8", some("goroutine")},
		{"/debug/pprof/", everything(), 200, "text/html; charset=utf-8", some("goroutine")},
		{"/debug/pprof/goroutine?debug=1", everything(), 200, plain, some("goroutine profile: total")},
		{"/debug/pprof/heap", everything(), 200, "application/octet-stream", some("")},
		{"/debug/pprof/symbol", everything(), 200, plain, some("num_symbols")},
		{"/debug/pprof/cmdline", everything(), 404, plain, some("Unknown profile")},
		{"/debug/flags", everything(), 200, "text/html; charset=utf-8", some("<td>v</td>")},
		{"/debug/flags/", everything(), 200, "text/html; charset=utf-8", some("<td>v</td>")},
		{"/debug/flags/other", everything(), 200, "text/html; charset=utf-8", some("<td>v</td>")},
		{"/debug/flags/v", everything(), 406, plain, exactly("unsupported http method\n")},
	}
	get(t, serve(t, introspect.Options{}), "/healthz") // so that /metrics/slis has something to show
	for _, tc := range cases {
		t.Run(tc.path, func(t *testing.T) {
			response, body := get(t, serve(t, tc.options), tc.path)
			if response.StatusCode != tc.code {
				t.Errorf("status %d, want %d", response.StatusCode, tc.code)
			}
			if got := response.Header.Get("Content-Type"); got != tc.typ {
				t.Errorf("Content-Type is %q, want %q", got, tc.typ)
			}
			if !tc.body(body) {
				t.Errorf("unexpected body:\n%.2000s", body)
			}
		})
	}
}

// The profile of one second proves that the server does not cut long answers short.
func testCPUProfileTakesItsTime(t *testing.T) {
	response, body := get(t, serve(t, everything()), "/debug/pprof/profile?seconds=1")
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(body, "\x1f\x8b") {
		t.Errorf("status %d, body %.100q; want a gzipped profile", response.StatusCode, body)
	}
}

func testLogLevelCanBeChanged(t *testing.T) {
	server := serve(t, everything())
	t.Cleanup(func() {
		if _, err := logs.GlogSetter("0"); err != nil {
			t.Error(err)
		}
	})
	put := func(level string) (int, string) {
		response, body := ask(t, server, http.MethodPut, "/debug/flags/v", "", level)
		return response.StatusCode, body
	}
	if code, body := put("7"); code != http.StatusOK || body != "successfully set klog.logging.verbosity to 7\n" {
		t.Errorf("PUT 7: %d %q", code, body)
	}
	if !klog.V(7).Enabled() || klog.V(8).Enabled() {
		t.Error("the log level is not 7")
	}
	for _, level := range []string{"", "loud", "-1", strings.Repeat("1", 100)} {
		if code, body := put(level); code != http.StatusBadRequest {
			t.Errorf("PUT %q: %d %q, want 400", level, code, body)
		}
	}
	if !klog.V(7).Enabled() || klog.V(8).Enabled() {
		t.Error("a bad level changed the log level")
	}
}

func testConfigurationIsPublished(t *testing.T) {
	server := serve(t, introspect.Options{})
	for _, hostname := range []string{"node-1", "node-2"} {
		c := &kubeproxyv1alpha1.KubeProxyConfiguration{HostnameOverride: hostname, Mode: "nftables"}
		if err := introspect.PublishConfig(c); err != nil {
			t.Fatal(err)
		}
		if c.Kind != "" {
			t.Error("PublishConfig changed what it was given")
		}
		response, body := get(t, server, "/configz")
		if got := response.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type is %q", got)
		}
		var got map[string]struct{ Kind, APIVersion, HostnameOverride, Mode string }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]struct{ Kind, APIVersion, HostnameOverride, Mode string }{
			"kubeproxy.config.k8s.io": {"KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1", hostname, "nftables"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/configz (-want +got):\n%s", diff)
		}
	}
}

func testZPagesAreText(t *testing.T) {
	server := serve(t, everything())
	for page, text := range map[string]*regexp.Regexp{
		"/flagz": regexp.MustCompile(`^\nkube-proxy flagz\nWarning: .*\n\ncleanup=false\npassword=CLASSIFIED\nproxy-mode=nftables\n$`),
		"/statusz": regexp.MustCompile(`^\nkube-proxy statusz\nWarning: .*\n\nStarted: .+\nUp: [0-9hm]+s\nGo version: go.+\n` +
			`Binary version: [0-9.]+\+nftproxy-.+\nEmulation version: [0-9.]+\nPaths: /configz /flagz /healthz /metrics /proxyMode\n$`),
	} {
		for _, accept := range []string{"", "*/*", "text/plain", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", "image/png", ";;"} {
			t.Run(page+" Accept "+accept, func(t *testing.T) {
				response, body := ask(t, server, http.MethodGet, page, accept, "")
				if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || got != "text/plain; charset=utf-8" {
					t.Errorf("status %d, Content-Type %q", response.StatusCode, got)
				}
				if !text.MatchString(body) {
					t.Errorf("unexpected body:\n%s", body)
				}
			})
		}
	}
}
