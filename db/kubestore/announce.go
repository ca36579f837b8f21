package kubestore

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// AnnounceWrites tells the database of writes that are on their way, so that those
// that come at the same time share a commit.
func (g *Getter) AnnounceWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if info, ok := request.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
			switch info.Verb {
			case "create", "update", "patch", "delete":
				ctx, end := g.db.Announce(req.Context())
				defer end()
				req = req.WithContext(ctx)
			}
		}
		next.ServeHTTP(w, req)
	})
}
