package web

import (
	"net/http"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// withOneNamespace turns a list of all namespaces that selects one by metadata.namespace into a
// list of that namespace. The generic registry does so for the first page only
// (storage.SelectionPredicate.MatchesSingleNamespace). It then reads the continue token of that
// page as one of all namespaces, and objects are missing or come twice.
func withOneNamespace(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && info.IsResourceRequest && info.Verb == "list" && info.Namespace == "" && r.URL.RawQuery != "" {
			selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
			if err == nil {
				if namespace, ok := selector.RequiresExactMatch("metadata.namespace"); ok && namespace != "" && len(content.IsPathSegmentName(namespace)) == 0 {
					narrowed := *info
					narrowed.Namespace = namespace
					r = r.WithContext(request.WithRequestInfo(r.Context(), &narrowed))
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}
