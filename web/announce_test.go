package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// A commit waits for a request that will write and has not yet, and for no other
// request.
func TestAnnounceWrites(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	dbtest.AwaitWaiters(t, clock, 1)
	other := func(key string) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := d.Put(t.Context(), key, 0, []byte("v"), db.PutOptions{})
			done <- err
		}()
		return done
	}
	finish := func(what string, done chan error) {
		t.Helper()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	handler := AnnounceWrites(d.Announce, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		waiting := clock.Waiters()
		done := other(req.URL.Path + "/b")
		if req.URL.Path == "/create" {
			dbtest.AwaitWaiters(t, clock, waiting+1)
			if len(done) > 0 {
				t.Fatal("a commit did not wait for the request")
			}
			if _, err := d.Put(req.Context(), req.URL.Path+"/c", 0, []byte("v"), db.PutOptions{}); err != nil {
				t.Error(err)
			}
		}
		finish("after the write", done)
	}))
	for _, info := range []request.RequestInfo{
		{IsResourceRequest: true, Verb: "create", Path: "/create"},
		{IsResourceRequest: true, Verb: "list", Path: "/list"},
		{Verb: "post", Path: "/other"},
	} {
		req := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), &info), http.MethodPost, info.Path, nil)
		handler.ServeHTTP(httptest.NewRecorder(), req)
		finish("after the request", other(info.Path+"/d"))
	}
}
