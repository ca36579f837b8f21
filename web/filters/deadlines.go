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
	// answerGrace is how long after its deadline a request may still write the error that reports it.
	answerGrace = 5 * time.Second
)

// WithWriteDeadlines makes writes to a client that does not read fail, so that the memory held for
// it is freed. A long-running request fails when one write has waited for timeout. Any other
// request fails soon after its deadline.
func WithWriteDeadlines(next http.Handler, longRunning request.LongRunningRequestCheck, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := &boundWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: timeout}
		// A connection that is kept open must not keep this request's deadline. An error means that the
		// client has gone.
		defer func() { _ = d.control.SetWriteDeadline(time.Time{}) }()
		info, _ := request.RequestInfoFrom(r.Context())
		if info != nil && longRunning(r, info) {
			defer d.keep()()
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(d), r)
			return
		}
		if deadline, ok := r.Context().Deadline(); ok {
			// an error means that the writer is not a connection
			_ = d.control.SetWriteDeadline(deadline.Add(answerGrace))
		}
		next.ServeHTTP(w, r)
	})
}

// boundWriter limits the time of each write to timeout, or a little less. The time between writes
// has no limit. But HTTP/2 ends a stream whose deadline has passed even if no write waits. So keep
// moves the deadline while a watch has nothing to send.
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
	_ = d.control.Flush() // the next Write returns the error, too
}

// begin sets the deadline of a write. Call done when the write has returned.
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

// extend moves the deadline if a quarter of timeout has passed since the last move. So many small
// events do not each move it. The caller holds mu.
func (d *boundWriter) extend() {
	if now := time.Now(); d.until.Sub(now) < d.timeout*3/4 {
		d.until = now.Add(d.timeout)
		_ = d.control.SetWriteDeadline(d.until)
	}
}

// Unwrap implements responsewriter.UserProvidedDecorator, and is for http.ResponseController.
func (d *boundWriter) Unwrap() http.ResponseWriter { return d.ResponseWriter }
