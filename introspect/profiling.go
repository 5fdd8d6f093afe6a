package introspect

import (
	"io"
	"net/http"
	"net/http/pprof"

	"k8s.io/component-base/logs"
)

// maxLevel is more than any log level is long.
const maxLevel = 16

// addProfiling adds the profiles of the Go runtime, and a way to change the log level of the
// running process: curl -X PUT -d 4 …/debug/flags/v.
func addProfiling(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags/", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "flags that PUT changes: v\n")
	})
	mux.HandleFunc("/debug/flags/v", setLogLevel)
}

func setLogLevel(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		writeText(w, http.StatusNotAcceptable, "unsupported http method\n")
		return
	}
	level, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevel))
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
