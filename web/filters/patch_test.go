package filters

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
)

// Other answers of 500 are sent unchanged, whatever their size.
func TestOtherFaultsOfPatchesAreSentAsTheyAre(t *testing.T) {
	for _, body := range []string{
		`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the disk is gone","code":500}`,
		`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"is not a map","code":500}`,
		"no JSON", "", strings.Repeat("does not contain declared merge key ", maxFault/8),
	} {
		h := WithCheckedPatches(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			for part := range strings.SplitSeq(body, " ") {
				_, _ = w.Write([]byte(part))
			}
		}), 1<<20, scheme.Codecs)
		r := httptest.NewRequest(http.MethodPatch, "/x", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if want := strings.ReplaceAll(body, " ", ""); w.Code != 500 || w.Body.String() != want {
			t.Errorf("%.80s: %d, %.80s", body, w.Code, w.Body)
		}
	}
}
