package web

import (
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"

	"github.com/gorilla/mux"
)

// rootRouter sends /hooks/ to the receivers, /console/ to the console unless that is nil, and
// everything else to the API server's handler chain.
func rootRouter(api, hooks, console http.Handler) http.Handler {
	// Paths go through untouched: the API server has its own idea of a clean
	// path, and a redirect would lose the body of a request.
	router := mux.NewRouter().SkipClean(true).UseEncodedPath()
	router.MatcherFunc(forHooks).Handler(recovering(hooks))
	if console != nil {
		router.MatcherFunc(forConsole).Handler(console)
	}
	router.NotFoundHandler = api
	router.MethodNotAllowedHandler = api
	return router
}

// noReceivers answers for the receivers where there are none.
func noReceivers(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "there are no receivers", http.StatusUnauthorized)
}

// forHooks says whether a request is, or was meant to be, for a receiver. The path of
// such a request may hold a secret, and the API server logs paths.
func forHooks(r *http.Request, _ *mux.RouteMatch) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(r.URL.Path), "/"), "/")
	return strings.EqualFold(first, "hooks")
}

// forConsole says whether a request is for the console.
func forConsole(r *http.Request, _ *mux.RouteMatch) bool {
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
