package introspect_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

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
	t.Run("negotiates the format of z-pages", testNegotiationOfTheZPages)
	t.Run("a refusal says what there is", testRefusalSaysWhatThereIs)
	t.Run("z-pages as objects", testZPagesAsObjects)
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
		{"/flagz", everything(), 200, plain, some("\nkube-proxy flagz\nWarning: ")},
		{"/flagz", everything(), 200, plain, some("\n\ncleanup=false\npassword=CLASSIFIED\nproxy-mode=nftables\n")},
		{"/statusz", everything(), 200, plain, some("\nkube-proxy statusz\nWarning: ")},
		{"/statusz", everything(), 200, plain, some("\nPaths: /configz /flagz /healthz /metrics /proxyMode\n")},
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

// kube-proxy v1.36.2 answers all of these with the same status and type, except for the one in capitals, which it does not accept.
func testNegotiationOfTheZPages(t *testing.T) {
	const (
		text = "text/plain; charset=utf-8"
		none = "406 application/json"
	)
	json := func(version string) string { return "application/json;g=config.k8s.io;v=" + version + ";as=%s" }
	yaml := func(version string) string { return "application/yaml;g=config.k8s.io;v=" + version + ";as=%s" }
	cases := []struct {
		name, accept, want string
	}{
		{"anything", "*/*", text},
		{"plain text", "text/plain", text},
		{"some text", "text/*", text},
		{"a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", text},
		{"the object", "application/json;as=%s;v=v1beta1;g=config.k8s.io", json("v1beta1")},
		{"the deprecated object", "application/json;as=%s;v=v1alpha1;g=config.k8s.io", json("v1alpha1")},
		{"the object as YAML", "application/yaml;as=%s;v=v1beta1;g=config.k8s.io", yaml("v1beta1")},
		{"the deprecated object as YAML", "application/yaml;as=%s;v=v1alpha1;g=config.k8s.io", yaml("v1alpha1")},
		{"the object in any form", "*/*;as=%s;v=v1beta1;g=config.k8s.io", json("v1beta1")},
		{"the object in capitals and with spaces", "Application/JSON; g=config.k8s.io; v=v1beta1; as=%s", json("v1beta1")},
		{"the object, or text", "application/json;as=%s;v=v1beta1;g=config.k8s.io,text/plain", json("v1beta1")},
		{"the object rather than text", "text/plain;q=0.1,application/json;as=%s;v=v1alpha1;g=config.k8s.io", json("v1alpha1")},
		{"text rather than the object", "application/json;as=%s;v=v1beta1;g=config.k8s.io;q=0.1,text/plain;q=0.9", text},
		{"the newer object, or the older", "application/json;as=%[1]s;v=v1beta1;g=config.k8s.io,application/json;as=%[1]s;v=v1alpha1;g=config.k8s.io", json("v1beta1")},
		{"the older object, or the newer", "application/json;as=%[1]s;v=v1alpha1;g=config.k8s.io,application/json;as=%[1]s;v=v1beta1;g=config.k8s.io", json("v1alpha1")},
		{"a version to come, or text", "application/json;as=%s;v=v1;g=config.k8s.io,text/plain", text},
		{"a version to come", "application/json;as=%s;v=v1;g=config.k8s.io", none},
		{"JSON of no kind", "application/json", none},
		{"JSON of no kind, or text", "application/json,text/plain", text},
		{"JSON without a version", "application/json;as=%s", none},
		{"another kind", "application/json;as=Pod;v=v1beta1;g=config.k8s.io", none},
		{"text of a kind", "text/plain;as=%s;v=v1beta1;g=config.k8s.io", none},
		{"a stream", "application/json;as=%s;v=v1beta1;g=config.k8s.io;stream=watch", none},
		{"a picture", "image/png", none},
		{"nonsense", ";;", none},
	}
	server := serve(t, everything())
	for path, kind := range map[string]string{"/flagz": "Flagz", "/statusz": "Statusz"} {
		for _, tc := range cases {
			t.Run(kind+" for who accepts "+tc.name, func(t *testing.T) {
				fill := func(s string) string { return strings.NewReplacer("%s", kind, "%[1]s", kind).Replace(s) }
				response, body := ask(t, server, http.MethodGet, path, fill(tc.accept), "")
				got := response.Header.Get("Content-Type")
				if response.StatusCode != http.StatusOK {
					got = fmt.Sprintf("%d %s", response.StatusCode, got)
				}
				if got != fill(tc.want) {
					t.Errorf("got %s, want %s: %s", got, fill(tc.want), body)
				}
				if deprecated := strings.Contains(got, "v=v1alpha1"); deprecated != (response.Header.Get("Warning") != "") {
					t.Errorf("the header Warning is %q", response.Header.Get("Warning"))
				}
			})
		}
	}
}

func testRefusalSaysWhatThereIs(t *testing.T) {
	_, body := ask(t, serve(t, everything()), http.MethodGet, "/flagz", "application/json", "")
	var status struct {
		Kind, Message string
		Code          int
	}
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if status.Kind != "Status" || status.Code != http.StatusNotAcceptable || !strings.Contains(status.Message, "application/json, application/yaml, text/plain") {
		t.Errorf("got %+v", status)
	}
}

func testZPagesAsObjects(t *testing.T) {
	server := serve(t, everything())
	decoders := map[string]func([]byte, *map[string]any) error{
		"json": func(text []byte, to *map[string]any) error { return json.Unmarshal(text, to) },
		"yaml": func(text []byte, to *map[string]any) error { return yaml.Unmarshal(text, to) },
	}
	for format, decode := range decoders {
		for _, version := range []string{"v1alpha1", "v1beta1"} {
			object := func(t *testing.T, path, kind string) map[string]any {
				t.Helper()
				_, body := ask(t, server, http.MethodGet, path, "application/"+format+";as="+kind+";v="+version+";g=config.k8s.io", "")
				var out map[string]any
				if err := decode([]byte(body), &out); err != nil {
					t.Fatalf("%v: %s", err, body)
				}
				return out
			}
			t.Run("Flagz "+version+" "+format, func(t *testing.T) {
				want := map[string]any{
					"apiVersion": "config.k8s.io/" + version, "kind": "Flagz", "metadata": map[string]any{"name": "kube-proxy"},
					"flags": map[string]any{"proxy-mode": "nftables", "cleanup": "false", "password": "CLASSIFIED"},
				}
				if diff := cmp.Diff(want, object(t, "/flagz", "Flagz")); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
			t.Run("Statusz "+version+" "+format, func(t *testing.T) {
				got := object(t, "/statusz", "Statusz")
				start, err := time.Parse(time.RFC3339, fmt.Sprint(got["startTime"]))
				if err != nil || time.Since(start) > time.Hour || time.Since(start) < 0 {
					t.Errorf("startTime is %v (%v)", got["startTime"], err)
				}
				if uptime, ok := got["uptimeSeconds"].(float64); !ok || uptime < 0 || uptime > 3600 {
					t.Errorf("uptimeSeconds is %v", got["uptimeSeconds"])
				}
				if binary := fmt.Sprint(got["binaryVersion"]); !strings.HasPrefix(binary, fmt.Sprint(got["emulationVersion"])) || !strings.Contains(binary, "+nftproxy-") {
					t.Errorf("binaryVersion is %v, emulationVersion %v", got["binaryVersion"], got["emulationVersion"])
				}
				for _, field := range []string{"startTime", "uptimeSeconds", "goVersion", "binaryVersion", "emulationVersion"} {
					if got[field] == "" || got[field] == nil {
						t.Errorf("there is no %s", field)
					}
					delete(got, field)
				}
				want := map[string]any{
					"apiVersion": "config.k8s.io/" + version, "kind": "Statusz", "metadata": map[string]any{"name": "kube-proxy"},
					"paths": []any{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"},
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}
