package queue_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/queue"
)

// folds answers as Gitea does, which finds tags whatever their case
// (models/packages/container/search.go compares lower_version) and lists them in lower case.
func folds(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		req.URL.Path = strings.ToLower(req.URL.Path)
		next.ServeHTTP(w, req)
	})
}

// A tag that the registry lists in another case than it was pushed in is not gone: the registry is
// asked. Once it says so, both spellings are.
func TestTagsWhoseCaseTheRegistryFolds(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	digest := w.push("team/app:v1.0-rc", "a") // of a push of V1.0-RC, Gitea keeps this
	w.registry.Inject("/manifests/", 0, folds)
	w.run(o)
	w.do("push team/app:V1.0-RC@" + digest)
	w.expect("pushed", w.references(digest), []string{"team/app:V1.0-RC"})

	o.Sweep.Repositories = []string{w.registry.Host + "/team/app"}
	sweeper, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	sweeper.SweepOnce(t.Context())
	w.expect("swept", w.references(digest), []string{"team/app:V1.0-RC", "team/app:v1.0-rc"})
	w.expect("gone", w.gone(digest), nil)

	w.delete("team/app", "v1.0-rc")
	w.delete("team/app", digest)
	sweeper.SweepOnce(t.Context())
	w.expect("gone", w.gone(digest), []string{"team/app:V1.0-RC", "team/app:v1.0-rc", "team/app@" + digest})
}
