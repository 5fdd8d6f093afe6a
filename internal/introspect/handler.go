package introspect

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// component is the name that pages show.
const component = "kube-proxy"

// mode is the answer of /proxyMode. It is the only mode that this proxy has.
const mode = "nftables"

// Options says what a Handler serves besides /metrics, /metrics/slis, /healthz, /proxyMode and /configz.
type Options struct {
	// Profiling adds /debug/pprof/ and /debug/flags/ (KubeProxyConfiguration enableProfiling).
	// They can slow the proxy down and make it log more, for whoever reaches the port.
	Profiling bool
	// Flags, if set, is what /flagz shows. kube-proxy has that page unless the feature gate
	// ComponentFlagz is off (KEP-4828).
	Flags *pflag.FlagSet
	// Statusz adds /statusz (feature gate ComponentStatusz, on by default; KEP-4827).
	Statusz bool
}

// Handler returns what the metrics port serves.
func Handler(o Options) http.Handler {
	mux := &mux{ServeMux: http.NewServeMux()}
	addHealthz(mux)
	mux.Handle("/metrics", legacyregistry.Handler())
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.Handle("/proxyMode", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, mode) }))
	configz.InstallHandler(mux)
	if o.Flags != nil {
		mux.Handle("/flagz", flagz(o.Flags))
	}
	if o.Profiling {
		addProfiling(mux.ServeMux)
	}
	if o.Statusz {
		mux.Handle("/statusz", statusz(mux.pages))
	}
	return mux
}

// mux remembers the pages that were added through it.
type mux struct {
	*http.ServeMux
	// pages is the first parts of their paths, such as "/metrics", each once.
	pages []string
}

// Handle implements the interface by which packages of component-base add pages.
func (m *mux) Handle(path string, handler http.Handler) {
	m.ServeMux.Handle(path, handler)
	first, _, _ := strings.Cut(path[1:], "/")
	m.pages = append(m.pages, "/"+first)
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	fmt.Fprint(w, text)
}
