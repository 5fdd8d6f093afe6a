package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// apiFault is something that goes wrong with the API server's answers about EndpointSlices.
type apiFault struct {
	name string
	// begin has it go wrong, for open watches too. The function that it returns mends it.
	begin func(t *testing.T, f *withServer) (mend func())
	// says is what the log says, and problem what health does, while it lasts.
	says, problem string
	// long says that it takes a minute or two, for timeouts of client-go.
	long bool
	// credentials, if set, gives the proxy others than a token in a file.
	credentials func(t *testing.T, f *withServer)
}

const (
	watchedResource = "endpointslices"
	cannotWatch     = "cannot watch " + watchedResource
	keeping         = `"Cannot watch; keeping the last known state and retrying" err="`
)

// answered has a handler answer all requests.
func answered(answer http.HandlerFunc) func(*testing.T, *withServer) func() {
	return wraps(func(http.Handler) http.Handler { return answer })
}

func wraps(wrap func(http.Handler) http.Handler) func(*testing.T, *withServer) func() {
	return func(t *testing.T, f *withServer) func() {
		f.server.Wrap(watchedResource, wrap)
		f.endWatches(t)
		return func() { f.server.Wrap(watchedResource, nil) }
	}
}

// status answers as an API server does.
func status(code int, reason string, retryAfter string) func(*testing.T, *withServer) func() {
	return answered(func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "reason": reason, "code": code,
		})
	})
}

// half answers with the beginning of the first object of the answer that is due. It ends watches so soon that client-go
// lists again: one that ends after a second or later is a normal end to it, and it watches on.
func half(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
			defer cancel()
			r = r.WithContext(ctx)
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		for name, values := range whole.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(whole.Code)
		const beginning = 64 // bytes, less than any object has
		_, _ = w.Write(whole.Body.Bytes()[:min(beginning, whole.Body.Len())])
	})
}

var apiFaults = []apiFault{
	{"401", status(http.StatusUnauthorized, "Unauthorized", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"403", status(http.StatusForbidden, "Forbidden", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"410", status(http.StatusGone, "Expired", ""), keeping + "injected", cannotWatch, false, nil},
	{"429 with Retry-After", status(http.StatusTooManyRequests, "TooManyRequests", "1"), keeping, cannotWatch, false, nil},
	{"500", status(http.StatusInternalServerError, "InternalError", ""), keeping + "failed to list *v1.EndpointSlice: injected", cannotWatch, false, nil},
	{"garbage", answered(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_, _ = w.Write(bytes.Repeat([]byte{0xff, 0x00, 'k', '8', 's'}, 1000))
	}), keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, false, nil},
	{"half objects", wraps(half), keeping + "failed to list *v1.EndpointSlice: unexpected EOF", cannotWatch, false, nil},
	{"nothing at all", func(t *testing.T, f *withServer) func() {
		f.server.Hang(watchedResource)
		f.endWatches(t)
		return func() { f.server.Answer(watchedResource) }
	}, keeping + "no answer from the API server for 10s", cannotWatch, false, nil},
	{"packets that vanish", func(t *testing.T, f *withServer) func() {
		_, port, err := net.SplitHostPort(strings.TrimPrefix(f.server.URL(), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		lab.Nft(t, f.lab.Node, "add table inet fault\nadd chain inet fault out { type filter hook output priority 0; }\n"+
			"add rule inet fault out tcp dport "+port+" drop\nadd rule inet fault out tcp sport "+port+" drop\n", "-f", "-")
		return func() { lab.Nft(t, f.lab.Node, "", "delete", "table", "inet", "fault") }
	}, keeping, cannotWatch, true, nil},
	{"a certificate that expires", func(t *testing.T, f *withServer) func() {
		renew := func(until time.Time) {
			if err := f.server.RenewCertificate(until); err != nil {
				t.Fatal(err)
			}
		}
		renew(time.Now().Add(-time.Minute))
		f.server.DropConnections()
		return func() { renew(time.Now().Add(time.Hour)) }
	}, "certificate has expired or is not yet valid", cannotWatch, false, nil},
	{"a token that expires", func(t *testing.T, f *withServer) func() {
		token := f.server.RenewToken()
		f.endWatches(t)
		return func() {
			if err := os.WriteFile(f.kubeconfig+".token", []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}, keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, true, nil},
	{"a client's certificate that expires", func(t *testing.T, f *withServer) func() {
		time.Sleep(shortLife)
		f.endWatches(t)
		return func() { f.clientCertificate(t, time.Hour) }
	}, keeping + "failed to list *v1.EndpointSlice: ", cannotWatch, true, func(t *testing.T, f *withServer) {
		f.clientCertificate(t, shortLife)
		text, err := os.ReadFile(f.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		files := fmt.Sprintf("client-certificate: %s.crt\n    client-key: %[1]s.key", f.kubeconfig)
		if err := os.WriteFile(f.kubeconfig, bytes.Replace(text, []byte("token: "+f.server.Token()), []byte(files), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}},
}

// shortLife is how long a certificate is valid that is to expire.
const shortLife = 20 * time.Second

// clientCertificate writes a certificate, and its key, that is valid for a while.
func (f *withServer) clientCertificate(t *testing.T, life time.Duration) {
	t.Helper()
	cert, key, err := f.server.ClientCertificate(time.Now().Add(life))
	if err := errors.Join(err, os.WriteFile(f.kubeconfig+".crt", cert, 0o600), os.WriteFile(f.kubeconfig+".key", key, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// endWatches ends the watches. What the server still sends to them does not count as the fault's.
func (f *withServer) endWatches(t *testing.T) {
	t.Helper()
	f.server.EndWatches()
	await.True(t, "the watches have ended", func() bool { return f.server.Watches(watchedResource) == 0 })
}

// tokenInAFile has the kubeconfig name a file with the token, as the kubelet gives it to a pod.
func (f *withServer) tokenInAFile(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	token := f.server.Token()
	text = bytes.Replace(text, []byte("token: "+token), []byte("tokenFile: "+f.kubeconfig+".token"), 1)
	if err := errors.Join(os.WriteFile(f.kubeconfig, text, 0o600), os.WriteFile(f.kubeconfig+".token", []byte(token), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// However the API server fails, traffic goes on, health says what is wrong and stays good, and a change made meanwhile
// is there within a back-off of the fault's end. Nothing is left open.
func TestAPIServerFault(t *testing.T) {
	for _, fault := range apiFaults {
		t.Run(fault.name, func(t *testing.T) {
			if fault.long && !*everyCall {
				t.Skip("takes a minute or two, for timeouts of client-go; run it with -every-call")
			}
			fault.survive(t)
		})
	}
}

func (fault apiFault) survive(t *testing.T) {
	f := newWithServer(t)
	if fault.credentials != nil {
		fault.credentials(t, f)
	} else {
		f.tokenInAFile(t)
	}
	f.createFaultService(t)
	p := f.start(t, "--kubeconfig="+f.kubeconfig)
	end := f.dialThroughout(t, p)

	mend := fault.begin(t, f)
	f.moveFaultService(t, "10.244.1.6")
	// Connections whose packets vanish are given up after 45 s without an answer, new ones after 30 s.
	f.becomesWithin(t, 2*time.Minute, "200 200", fault.problem)
	p.Says(t, fault.says)
	f.reaches(t, "first")

	mend()
	// client-go reads files with credentials once a minute (certificates: see cmd/kube-proxy), and its longest back-off is
	// about as long.
	f.reachesWithin(t, 2*time.Minute, "second")
	f.recovers(t)
	end()
}
