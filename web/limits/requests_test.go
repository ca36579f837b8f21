package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// served is what becomes of an administrator's request.
func served(t *testing.T, h http.Handler, w http.ResponseWriter, verb string) {
	ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{Verb: verb, IsResourceRequest: true, Resource: "images"})
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
}

func options() RequestOptions {
	return RequestOptions{MaxReads: 8, MaxWrites: 4, LongRunning: func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" }}
}

// An administrator who asks for more lists than are served at once holds up
// neither reads nor changes nor watches.
func TestListsHoldUpNothingElse(t *testing.T) {
	t.Parallel()
	release, listing := make(chan struct{}), make(chan struct{})
	l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, _ := request.RequestInfoFrom(r.Context()); info.Verb == "list" {
			listing <- struct{}{}
			<-release
		}
	}), options()).(*requestLimits)
	done := make(chan struct{})
	l.lists.patience = time.Hour
	const lists = 20
	for range lists {
		go func() {
			served(t, l, httptest.NewRecorder(), "list")
			done <- struct{}{}
		}()
	}
	for range l.lists.max {
		<-listing
	}
	waits(t, l.lists, lists-l.lists.max)
	for _, verb := range []string{"get", "create", "update", "delete", "watch"} {
		w := httptest.NewRecorder()
		if served(t, l, w, verb); w.Code != http.StatusOK {
			t.Errorf("%s while lists wait: %d %s", verb, w.Code, w.Body)
		}
	}
	close(release)
	for n := 0; n < lists; {
		select {
		case <-listing:
		case <-done:
			n++
		}
	}
}

// Administrators are told to come later like anybody, each kind by itself.
func TestAdministratorsAreLimited(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"get", "list", "create", "watch"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			release, running := make(chan struct{}), make(chan struct{})
			l := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				running <- struct{}{}
				<-release
			}), options()).(*requestLimits)
			for _, c := range []*class{l.reads, l.lists, l.writes, l.long} {
				c.max, c.perCaller, c.maxWaiting = 2, 2, 0
			}
			done := make(chan struct{})
			for range 2 {
				go func() {
					served(t, l, httptest.NewRecorder(), verb)
					done <- struct{}{}
				}()
				<-running
			}
			w := httptest.NewRecorder()
			if served(t, l, w, verb); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
				t.Errorf("one %s too many: %d %v %s", verb, w.Code, w.Header(), w.Body)
			}
			close(release)
			<-done
			<-done
		})
	}
}

// A list that waits for its reader does not hold up other lists.
func TestListsThatAreNotReadHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("items"))
		w.(http.Flusher).Flush()
	}), options()).(*requestLimits)
	l.turns = make(chan struct{}, 1)
	unread := &blockedWriter{ResponseRecorder: httptest.NewRecorder(), writing: make(chan struct{}), release: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		served(t, l, unread, "list")
		close(done)
	}()
	<-unread.writing
	w := httptest.NewRecorder()
	if served(t, l, w, "list"); w.Body.String() != "items" {
		t.Errorf("got %q", w.Body)
	}
	close(unread.release)
	<-done
	if len(l.turns) != 0 {
		t.Errorf("%d turns are held by nobody", len(l.turns))
	}
}

// blockedWriter is a response that nobody reads, until released.
type blockedWriter struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (b *blockedWriter) Write(p []byte) (int, error) {
	b.writing <- struct{}{}
	<-b.release
	return b.ResponseRecorder.Write(p)
}

// CloseNotify is what net/http's own responses have besides.
func (b *blockedWriter) CloseNotify() <-chan bool { return nil }

// BenchmarkLimits is what the limits cost a read.
func BenchmarkLimits(b *testing.B) {
	l := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), RequestOptions{MaxReads: 400, MaxWrites: 200, Connections: NewConnections(10)})
	ctx := request.WithRequestInfo(context.Background(), &request.RequestInfo{Verb: "get"})
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "admin"})
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	l.(*requestLimits).o.Connections.add(phone{from: r.RemoteAddr, hungUp: func(string) {}})
	b.ReportAllocs()
	for b.Loop() {
		l.ServeHTTP(nil, r)
	}
}

// A list that waits for something else than its reader holds up no others, also where two of
// its parts wait at once.
func TestListsThatPauseHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	l := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), options()).(*requestLimits)
	l.turns = make(chan struct{}, 1)
	other := func() {
		t.Helper()
		w := httptest.NewRecorder()
		if served(t, l, w, "list"); w.Code != http.StatusOK {
			t.Errorf("another list: %d", w.Code)
		}
	}
	pausing := *l
	pausing.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(l.turns) != 1 {
			t.Error("a list is served without a turn")
		}
		resume := Pause(r.Context())
		other()
		also := Pause(r.Context())
		also()
		other()
		resume()
		if len(l.turns) != 1 {
			t.Error("a list goes on without a turn")
		}
	})
	served(t, &pausing, httptest.NewRecorder(), "list")
	if len(l.turns) != 0 {
		t.Errorf("%d turns are held by nobody", len(l.turns))
	}
	Pause(t.Context())() // has none to give up
}
