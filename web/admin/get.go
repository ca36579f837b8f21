package admin

import (
	"net/http"
	"net/url"
)

// SummaryPath is where a server tells what it stores, in numbers. ReceiversPath is where it tells
// what its receivers of webhooks have heard.
const (
	SummaryPath   = "/tidewaiter/summary"
	ReceiversPath = "/tidewaiter/receivers"
)

// Get answers GET with what of returns for a query: a type that becomes JSON, or why the query is
// wrong.
func Get[T any](of func(query url.Values) (T, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "this can only be read", http.StatusMethodNotAllowed)
			return
		}
		got, err := of(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer(w, got)
	})
}
