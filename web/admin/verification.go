package admin

import "net/http"

// VerificationPath is where a server tells how far it has come with judging its images
// again, and where it is asked to begin.
const VerificationPath = "/tidewaiter/verification"

// Sweeper judges all images again, one sweep after the other. P describes a sweep: a
// type that becomes JSON, with the sweep's number as "sweep".
type Sweeper[P any] interface {
	// Progress describes the current sweep, or the last one.
	Progress() P
	// Trigger asks for a sweep that begins after the call, and returns its number. It
	// does not wait.
	Trigger() (sweep int64)
}

// Verification answers GET with the progress. It answers POST by asking for a sweep,
// whose number it returns as {"sweep": N}.
func Verification[P any](s Sweeper[P]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			answer(w, s.Progress())
		case http.MethodPost:
			answer(w, map[string]int64{"sweep": s.Trigger()})
		default:
			w.Header().Set("Allow", "GET, POST")
			http.Error(w, "GET returns the progress, POST starts", http.StatusMethodNotAllowed)
		}
	})
}
