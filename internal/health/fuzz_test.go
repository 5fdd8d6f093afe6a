package health_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nftproxy/nftproxy/internal/health"
)

// FuzzRequest shows that no request makes the health server fall over, and that it answers the probes' paths alone. Who
// reaches the node can send one.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/healthz", "/livez?verbose", "/", "/../healthz"} {
		f.Add("GET " + path + " HTTP/1.1\r\nHost: node\r\n\r\n")
	}
	f.Add("POST /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
	handler := health.NewProxy(health.Options{}).Handler()
	f.Fuzz(func(t *testing.T, text string) {
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		switch answer.Code {
		case http.StatusOK, http.StatusServiceUnavailable:
			if path := request.URL.Path; !json.Valid(answer.Body.Bytes()) || path != "/healthz" && path != "/livez" {
				t.Errorf("%q is answered with %q", text, answer.Body)
			}
		case http.StatusNotFound, http.StatusPermanentRedirect, http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest, http.StatusMethodNotAllowed:
		default:
			t.Errorf("%q is answered with %d", text, answer.Code)
		}
	})
}
