package web

import (
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
)

// rootRouter sends /hooks/ to the receivers, /console/ to the console unless that is nil, and
// everything else to the API server's handler chain.
func rootRouter(api, hooks, console http.Handler) http.Handler {
	hooks = recovering(hooks)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		growStack(0)
		switch {
		case forHooks(r):
			hooks.ServeHTTP(w, r)
		case console != nil && forConsole(r):
			console.ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// growStack gives the goroutine of a request the 16 KiB of stack that the handlers need, while
// there is next to nothing on it. Otherwise the runtime doubles its stack three times on the way
// through them, and walks over all their frames each time.
//
//go:noinline
func growStack(i uint8) byte {
	var room [12 << 10]byte
	return room[i]
}

// ByMethod passes each request to the handler of its method or, if it has none, to the handler of
// "".
type ByMethod map[string]http.Handler

// ServeHTTP implements http.Handler.
func (m ByMethod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, ok := m[r.Method]
	if !ok {
		h = m[""]
	}
	h.ServeHTTP(w, r)
}

// noReceivers answers for the receivers where there are none.
func noReceivers(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "there are no receivers", http.StatusUnauthorized)
}

// forHooks says whether a request is, or was meant to be, for a receiver. The path of
// such a request may hold a secret, and the API server logs paths.
func forHooks(r *http.Request) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(r.URL.Path), "/"), "/")
	return strings.EqualFold(first, "hooks")
}

// forConsole says whether a request is for the console.
func forConsole(r *http.Request) bool {
	return r.URL.Path == "/console" || strings.HasPrefix(r.URL.Path, "/console/")
}

// recovering answers 500 for a handler that panics, and logs why. The API server's own
// filter would also log the path, which may hold a receiver's secret.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p)
			default:
				slog.Error("A webhook's handler panicked", "panic", p, "stack", string(debug.Stack()))
				http.Error(w, "internal error; the server's log says why", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
