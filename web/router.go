package web

import (
	"net/http"

	"github.com/gorilla/mux"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// rootRouter sends /hooks/ to the receivers and everything else to the API
// server's handler chain.
func rootRouter(api, hooks http.Handler, resolver apirequest.RequestInfoResolver) http.Handler {
	// Paths go through untouched: the API server has its own idea of a clean
	// path, and a redirect would lose the body of a request.
	router := mux.NewRouter().SkipClean(true).UseEncodedPath()
	if hooks != nil {
		router.PathPrefix("/hooks/").Handler(genericfilters.WithPanicRecovery(hooks, resolver))
	}
	router.NotFoundHandler = api
	router.MethodNotAllowedHandler = api
	return router
}
