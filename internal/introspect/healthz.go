package introspect

import (
	"net/http"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// addHealthz adds what kube-proxy has here besides the /healthz of its other port: it says
// that this server answers, and nothing of the rules.
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
	mux.Handle("/healthz/ping", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok")
	}))
}
