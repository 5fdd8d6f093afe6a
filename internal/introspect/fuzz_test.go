package introspect_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/nftproxy/nftproxy/internal/introspect"
)

// FuzzAccept shows that no header Accept and no query make a page fall over: it is served in a form that there is, or
// refused.
func FuzzAccept(f *testing.F) {
	f.Add("", "")
	f.Add("application/json;g=config.k8s.io;v=v1beta1;as=Flagz;q=0.5, text/*;q=0.1, */*", "pretty=1")
	f.Add("application/json;;v=;as, ,/,*/json", "pretty=1&pretty")
	handler := introspect.Handler(everything())
	f.Fuzz(func(t *testing.T, accept, query string) {
		for _, page := range []string{"/flagz", "/statusz"} {
			request := httptest.NewRequest(http.MethodGet, page, nil)
			request.Header.Set("Accept", accept)
			request.URL.RawQuery = query
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			if answer.Code != http.StatusOK && answer.Code != http.StatusNotAcceptable {
				t.Errorf("%s, Accept %q, query %q: %d", page, accept, query, answer.Code)
			}
		}
	})
}
