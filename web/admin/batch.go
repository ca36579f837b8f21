package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// maxBatch bounds the body of a request with a batch, in bytes.
const maxBatch = 1 << 20

// Batch handles requests to path, a JSON array with a bounded number of elements, and passes other
// requests to next. It stands behind authorization.
func Batch[Element any](next http.Handler, path string, most int, take func([]Element)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path || r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		var all []Element
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBatch)).Decode(&all); err != nil || len(all) > most {
			http.Error(w, fmt.Sprintf("expected a JSON array of at most %d checks", most), http.StatusBadRequest)
			return
		}
		take(all)
		answer(w, struct{}{})
	})
}
