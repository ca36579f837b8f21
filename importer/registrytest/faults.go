package registrytest

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"time"
)

// Fault stands between a request and the registry.
type Fault func(next http.Handler) http.Handler

type injected struct {
	match *regexp.Regexp
	times int // how often it still acts; negative is always
	fault Fault
}

// Inject applies a fault to the next times requests ("METHOD /path") that match a regular
// expression; 0 is all. Of several faults the first that matches acts.
func (r *Registry) Inject(match string, times int, fault Fault) {
	r.t.Helper()
	times = cmp.Or(times, -1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, &injected{regexp.MustCompile(match), times, fault})
}

// Heal takes all faults away.
func (r *Registry) Heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

func (r *Registry) faultFor(req *http.Request) Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		if f.times != 0 && f.match.MatchString(req.Method+" "+req.URL.Path) {
			f.times--
			return f.fault
		}
	}
	return nil
}

// Status answers with a status, an error code of the distribution-spec, and
// headers given as pairs.
func Status(status int, code string, headers ...string) Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			writeError(w, status, code, "injected "+code)
		})
	}
}

// StallHeaders answers nothing until the client is gone.
func StallHeaders() Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	}
}

// StallBody sends the headers and half of the body, then nothing until the
// client is gone.
func StallBody() Fault {
	return rewrite(func(w http.ResponseWriter, req *http.Request, body []byte) {
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		<-req.Context().Done()
	})
}

// Drip sends the body a byte at a time, one each interval.
func Drip(interval time.Duration) Fault {
	return rewrite(func(w http.ResponseWriter, req *http.Request, body []byte) {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for i := range body {
			if _, err := w.Write(body[i : i+1]); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			select {
			case <-ticker.C:
			case <-req.Context().Done():
				return
			}
		}
	})
}

// Corrupt changes the last byte that is not white space or a brace, and keeps the length
// and all headers.
func Corrupt() Fault {
	return rewrite(func(w http.ResponseWriter, _ *http.Request, body []byte) {
		changed := append([]byte(nil), body...)
		for i := len(changed) - 1; i >= 0; i-- {
			if c := changed[i]; c >= '0' && c <= '9' {
				changed[i] = '0' + (c-'0'+1)%10
				break
			} else if i == 0 {
				changed[0] ^= 1
			}
		}
		_, _ = w.Write(changed)
	})
}

// Truncate ends the body, and the connection, half way.
func Truncate() Fault {
	return rewrite(func(w http.ResponseWriter, _ *http.Request, body []byte) {
		_, _ = w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	})
}

// Append makes the body n bytes longer. If declared, Content-Length says so,
// else there is none.
func Append(n int64, declared bool) Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, req)
			copyHeader(w, answer)
			w.Header().Del("Content-Length")
			if declared {
				w.Header().Set("Content-Length", fmt.Sprint(int64(answer.Body.Len())+n))
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
			chunk := make([]byte, 32<<10)
			for i := range chunk {
				chunk[i] = ' '
			}
			for left := n; left > 0 && req.Method != http.MethodHead; left -= int64(len(chunk)) {
				if _, err := w.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
					return
				}
			}
		})
	}
}

// Redirect sends the client to the same path below another URL.
func Redirect(status int, to string) Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, to+req.URL.RequestURI(), status)
		})
	}
}

// WithoutHeader removes headers from the answer.
func WithoutHeader(names ...string) Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, req)
			for _, name := range names {
				answer.Header().Del(name)
			}
			copyHeader(w, answer)
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		})
	}
}

// rewrite sends the headers of the true answer, and a body of its own.
func rewrite(send func(w http.ResponseWriter, req *http.Request, body []byte)) Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, req)
			copyHeader(w, answer)
			w.WriteHeader(answer.Code)
			if req.Method == http.MethodHead {
				return // only the headers are sent
			}
			send(w, req, answer.Body.Bytes())
		})
	}
}

func copyHeader(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	maps.Copy(w.Header(), answer.Header())
}
