package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nftproxy/nftproxy/model"
)

// answer is the body of /healthz and /livez, as in kube-proxy v1.37 but for problems. A time in the year 1 means never.
type answer struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status"`
	Problems     []string                `json:"problems,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler answers /healthz and /livez with 200 or 503. /healthz is for load balancers and readiness probes: it fails
// until a sync has succeeded, and while the Node is being deleted or does not exist any more. /livez is for the
// kubelet: it fails only when a restart may help.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		s.NodeEligible = &s.eligible
		s.reply(w, s.ready, s.eligible, p.options.OnHealthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		s.reply(w, s.alive, true, p.options.OnLivez)
	})
	return mux
}

// reply answers 200 if the proxy is healthy and the node eligible. Both IP families are synced at once.
func (s state) reply(w http.ResponseWriter, healthy, eligible bool, count func(code int)) {
	s.Healthy, s.Status = healthy, map[string]familyStatus{}
	for _, family := range model.Families {
		s.Status[family.String()] = familyStatus{LastUpdated: s.LastUpdated, Healthy: healthy}
	}
	code := http.StatusServiceUnavailable
	if healthy && eligible {
		code = http.StatusOK
		// As in kube-proxy, a good answer has the current time here; status has the time of the last sync.
		s.LastUpdated = s.CurrentTime
	}
	if count != nil {
		count(code)
	}
	text, err := json.Marshal(s.answer)
	if err != nil { // a year beyond 9999
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, code, text)
}

func writeJSON(w http.ResponseWriter, code int, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client may be gone
}

// Serve answers HTTP requests on l until ctx ends, and then closes l. It returns an error if l fails.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := newServer(handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}

// newServer returns a server that closes connections of silent clients.
func newServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
}
