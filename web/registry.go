package web

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// withArtifacts adds artifacts to the lists of images that OpenShift's registry reads. With
// -prune=delete, it deletes each blob that no Image in a list without a selector names, so charts
// and signatures would be gone. Lists of other clients hold images alone.
func withArtifacts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && info.Verb == "list" && info.APIGroup == "image.openshift.io" && info.Resource == "images" && strings.HasPrefix(r.UserAgent(), "dockerregistry/") {
			if query := r.URL.Query(); !query.Has("fieldSelector") {
				query.Set("fieldSelector", "artifact=any")
				asked := *r.URL
				asked.RawQuery = query.Encode()
				r = r.WithContext(r.Context())
				r.URL = &asked
			}
		}
		next.ServeHTTP(w, r)
	})
}
