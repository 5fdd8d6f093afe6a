// Package introspect serves kube-proxy v1.37's metrics port, 10249, by [Handler]: metrics for
// Prometheus, and configuration, flags and status for people with curl.
package introspect

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/logs"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// Options chooses pages besides /metrics, /metrics/slis, /healthz, /proxyMode and /configz.
type Options struct {
	// Profiling adds /debug/pprof/ and /debug/flags/ (KubeProxyConfiguration enableProfiling).
	// Whoever reaches the port can then slow the proxy down and make it log more.
	Profiling bool
	// Flags, if set, adds /flagz, which shows them (feature gate ComponentFlagz, on by default; KEP-4828).
	Flags *pflag.FlagSet
	// Statusz adds /statusz (feature gate ComponentStatusz, on by default; KEP-4827).
	Statusz bool
}

// Handler returns the handler of the metrics port.
func Handler(o Options) http.Handler {
	mux := &mux{ServeMux: http.NewServeMux()}
	addHealthz(mux)
	mux.Handle("/metrics", legacyregistry.Handler())
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.Handle("/proxyMode", textPage(func() string { return "nftables" }))
	configz.InstallHandler(mux)
	if o.Flags != nil {
		mux.Handle("/flagz", textPage(func() string { return flagz(o.Flags) }))
	}
	if o.Profiling {
		addProfiling(mux.ServeMux)
	}
	if o.Statusz {
		pages := slices.Compact(slices.Sorted(slices.Values(mux.pages)))
		mux.Handle("/statusz", textPage(func() string { return statusz(pages) }))
	}
	return mux
}

// mux remembers the first part of the path of each page that was added through it, such as "/metrics".
type mux struct {
	*http.ServeMux
	pages []string
}

// Handle implements the interface by which packages of component-base add pages.
func (m *mux) Handle(path string, handler http.Handler) {
	m.ServeMux.Handle(path, handler)
	first, _, _ := strings.Cut(path[1:], "/")
	m.pages = append(m.pages, "/"+first)
}

func textPage(text func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, text()) })
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprint(w, text)
}

// addHealthz adds the health check of this server alone. That of the proxy is on another port, as in kube-proxy.
func addHealthz(mux *mux) {
	mux.Handle("/healthz", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The error is always nil.
		_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
		if r.URL.Query().Has("verbose") {
			writeText(w, http.StatusOK, "[+]ping ok\nhealthz check passed\n")
			return
		}
		writeText(w, http.StatusOK, "ok")
	}))
	mux.Handle("/healthz/ping", textPage(func() string { return "ok" }))
}

// addProfiling adds the profiles of the Go runtime, and a page that changes the log level of the
// running process: curl -X PUT -d 4 …/debug/flags/v.
func addProfiling(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	// Without the slash a client would be redirected, and a PUT with it.
	mux.HandleFunc("/debug/flags", listFlags)
	mux.HandleFunc("/debug/flags/", listFlags)
	mux.HandleFunc("/debug/flags/v", setLogLevel)
}

func listFlags(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(w, "<html><head><title>/debug/flags/</title></head><body>\nFlags that PUT /debug/flags/NAME changes:\n<table>\n<tr><td>v</td></tr>\n</table>\n</body></html>\n")
}

func setLogLevel(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		writeText(w, http.StatusNotAcceptable, "unsupported http method\n")
		return
	}
	const maxSize = 16 // no log level is longer
	level, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSize))
	if err != nil {
		writeText(w, http.StatusBadRequest, "error reading request body: "+err.Error()+"\n")
		return
	}
	done, err := logs.GlogSetter(string(level))
	if err != nil {
		writeText(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	writeText(w, http.StatusOK, done+"\n")
}
