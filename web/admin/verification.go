package admin

import "net/http"

// VerificationPath is where a server tells how far it has come with judging its
// images again, and begins to when it is asked.
const VerificationPath = "/tidewaiter/verification"

// Sweeper judges all images again, one sweep after the other. P is what it tells
// of a sweep: a type that becomes JSON, with the sweep's number as "sweep".
type Sweeper[P any] interface {
	// Progress is that of the current sweep, or of the last one.
	Progress() P
	// Trigger asks for a sweep that begins from now on, and returns its number. It
	// does not wait.
	Trigger() (sweep int64)
}

// Verification answers GET with the progress. It answers POST with the number of
// the sweep that it has asked for, as {"sweep": N}.
func Verification[P any](s Sweeper[P]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			answer(w, s.Progress())
		case http.MethodPost:
			answer(w, map[string]int64{"sweep": s.Trigger()})
		default:
			w.Header().Set("Allow", "GET, POST")
			http.Error(w, "GET tells the progress, POST begins", http.StatusMethodNotAllowed)
		}
	})
}
