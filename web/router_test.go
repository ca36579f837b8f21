package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A path that holds a receiver's secret does not reach the API server, which logs
// paths. That holds however the path is written, with and without receivers.
func TestPathsWithSecretsAreKeptFromTheLog(t *testing.T) {
	t.Parallel()
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	hooks := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) })
	for path, ours := range map[string]bool{
		"/hooks/quay/SECRET": true, "/hooks": true, "/hooks/": true, "//hooks/quay/SECRET": true, "/HOOKS/quay/SECRET": true,
		"/./hooks/quay/SECRET": true, "/apis/../hooks/quay/SECRET": true, "/%68ooks/quay/SECRET": true, "/%2Fhooks/quay/SECRET": true,
		"/": false, "/apis": false, "/api/v1/namespaces/hooks/pods": false, "/hooksx": false, "/readyz": false,
	} {
		for name, test := range map[string]struct {
			hooks http.Handler
			want  int
		}{"with receivers": {hooks, http.StatusAccepted}, "without": {http.HandlerFunc(noReceivers), http.StatusUnauthorized}} {
			want := test.want
			if !ours {
				want = http.StatusTeapot
			}
			w := httptest.NewRecorder()
			rootRouter(api, test.hooks, nil).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			if w.Code != want {
				t.Errorf("%s %s: %d, want %d", path, name, w.Code, want)
			}
		}
	}
}
