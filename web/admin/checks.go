package admin

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// maxChecks bounds the body of a request with tags.MaxChecks checks, in bytes.
const maxChecks = 1 << 20

// Checks takes what is sent to tags.ChecksPath, and passes other requests to next. It stands behind authorization.
func Checks(next http.Handler, confirm func([]tags.Check)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != tags.ChecksPath || r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		var all []tags.Check
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChecks)).Decode(&all); err != nil || len(all) > tags.MaxChecks {
			http.Error(w, fmt.Sprintf("this is no JSON array of at most %d checks", tags.MaxChecks), http.StatusBadRequest)
			return
		}
		confirm(all)
		answer(w, struct{}{})
	})
}
