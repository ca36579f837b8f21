package filters

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

const (
	// ReaderTimeout is how long a watch or a followed log waits for a client that reads nothing.
	ReaderTimeout = 30 * time.Second
	// answerGrace is how long after its deadline a request may still write that it is over.
	answerGrace = 5 * time.Second
)

// WithWriteDeadlines makes writes to a client that does not read fail, so that the memory held for
// it can go. A request that runs for long fails when one write has waited for patience. Any other
// request fails soon after its deadline.
func WithWriteDeadlines(next http.Handler, longRunning request.LongRunningRequestCheck, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &boundWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout}
		// A kept connection outlives the deadlines of its requests. An error means that the client
		// is gone.
		defer func() { _ = d.control.SetWriteDeadline(time.Time{}) }()
		info, _ := request.RequestInfoFrom(r.Context())
		if info != nil && longRunning(r, info) {
			defer d.keep()()
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(d), r)
			return
		}
		if deadline, ok := r.Context().Deadline(); ok {
			// a writer that cannot be bound is not a connection
			_ = d.control.SetWriteDeadline(deadline.Add(answerGrace))
		}
		next.ServeHTTP(w, r)
	})
}

// boundWriter gives each write its patience, or a little less. Between writes there is no limit.
// But HTTP/2 ends a stream whose deadline has passed, even when nothing waits to be written. So the
// deadline is moved while a watch has nothing to tell.
type boundWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration

	mu      sync.Mutex
	until   time.Time
	writing bool
	idle    *time.Timer // moves the deadline; nil when the handler has ended
}

// keep moves the deadline between writes, until end is called.
func (d *boundWriter) keep() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = time.AfterFunc(d.timeout/4, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.idle == nil {
			return
		}
		if !d.writing && !d.until.IsZero() {
			d.extend()
		}
		d.idle.Reset(d.timeout / 4)
	})
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.idle.Stop()
		d.idle = nil
	}
}

// Write implements http.ResponseWriter.
func (d *boundWriter) Write(p []byte) (int, error) {
	defer d.begin()()
	return d.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (d *boundWriter) Flush() {
	defer d.begin()()
	_ = d.control.Flush() // an error is that of the next Write, too
}

// begin gives a write its patience; done is called when it has returned.
func (d *boundWriter) begin() (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.extend()
	d.writing = true
	return d.done
}

func (d *boundWriter) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing = false
	d.extend()
}

// extend moves the deadline when a quarter of it is over, so not for each of many small events. The
// caller holds mu.
func (d *boundWriter) extend() {
	if now := time.Now(); d.until.Sub(now) < d.timeout*3/4 {
		d.until = now.Add(d.timeout)
		_ = d.control.SetWriteDeadline(d.until)
	}
}

// Unwrap implements responsewriter.UserProvidedDecorator, and is for http.ResponseController.
func (d *boundWriter) Unwrap() http.ResponseWriter { return d.ResponseWriter }
