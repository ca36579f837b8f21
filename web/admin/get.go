package admin

import "net/http"

// SummaryPath is where a server tells what it stores, in numbers. ReceiversPath is where it tells what its receivers of webhooks have
// heard.
const (
	SummaryPath   = "/tidewaiter/summary"
	ReceiversPath = "/tidewaiter/receivers"
)

// Get answers GET with what of returns: a type that becomes JSON.
func Get[T any](of func() T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "this can only be read", http.StatusMethodNotAllowed)
			return
		}
		answer(w, of())
	})
}
