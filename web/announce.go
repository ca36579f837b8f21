package web

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// AnnounceWrites tells a storage that writes are on their way, so that those that come at
// the same time share a commit. announce returns the context of one write, and a function
// that ends it.
func AnnounceWrites(announce func(context.Context) (_ context.Context, end func()), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if info, ok := request.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
			switch info.Verb {
			case "create", "update", "patch", "delete":
				ctx, end := announce(req.Context())
				defer end()
				req = req.WithContext(ctx)
			}
		}
		next.ServeHTTP(w, req)
	})
}
