package introspect

import (
	"fmt"
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
