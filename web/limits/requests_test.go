package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

// served makes an administrator's request and returns its outcome.
func served(t *testing.T, h http.Handler, w http.ResponseWriter, verb string) {
	t.Helper()
	servedTo(t, h, w, verb, "admin", "192.0.2.1:1234")
}

// servedTo makes a user's request and returns its outcome.
func servedTo(t *testing.T, h http.Handler, w http.ResponseWriter, verb, name, remote string) {
	t.Helper()
	servedIn(t.Context(), h, w, verb, name, remote)
}

func servedIn(ctx context.Context, h http.Handler, w http.ResponseWriter, verb, name, remote string) {
	servedAs(ctx, h, w, &request.RequestInfo{Verb: verb, IsResourceRequest: true, Resource: "images"}, name, remote)
}

func servedAs(ctx context.Context, h http.Handler, w http.ResponseWriter, info *request.RequestInfo, name, remote string) {
	ctx = request.WithRequestInfo(ctx, info)
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}})
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	h.ServeHTTP(w, r)
}

func options() RequestOptions {
	return RequestOptions{Refused: NewRefused(nil), MaxReads: 400, MaxWrites: 200, LongRunning: func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" }}
}

// TestListsHoldUpNothingElse: an administrator requests more lists than are served at once. That
// delays no reads, changes or watches.
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
	l.lists.maxWait = time.Hour
	l.turns.max = l.lists.perCaller
	lists := 2 * l.lists.perCaller // and one more would be refused
	for range lists {
		go func() {
			served(t, l, httptest.NewRecorder(), "list")
			done <- struct{}{}
		}()
	}
	for range l.lists.perCaller {
		<-listing
	}
	waits(t, l.lists, l.lists.perCaller)
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

// TestAdministratorsAreLimited: administrators get 429 like other users, separately for each kind.
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
			l.turns.max = 2
			for _, c := range []*class{l.reads, l.lists, l.writes, l.long} {
				c.max, c.perUser, c.perCaller, c.maxWaiting = 2, 2, 2, 0
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

// TestAttackOfOneGreedyUser: one user lists over 64 connections, opens 10,000 watches, and reads
// and changes as much. Requests above the user's share get 429, at once or after waiting. Another
// user's requests of the same kinds all succeed, even at the same address.
func TestAttackOfOneGreedyUser(t *testing.T) {
	t.Parallel()
	for _, attack := range []struct {
		verb             string
		requests, served int
		waiting          int
	}{{"list", 64, 25, 25}, {"watch", 10_000, 1250, 0}, {"get", 1000, 200, 200}, {"create", 1000, 100, 100}} {
		t.Run(attack.verb, func(t *testing.T) {
			t.Parallel()
			release, running := make(chan struct{}), make(chan struct{})
			l := WithRequestLimits(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if u, _ := request.UserFrom(r.Context()); u.GetName() == "mallory" {
					running <- struct{}{}
					<-release
				}
			}), options()).(*requestLimits)
			l.turns.max = attack.requests // lists are in flight, whether they have a turn or not
			for _, c := range []*class{l.reads, l.lists, l.writes} {
				c.maxWait = time.Hour
			}
			answers := make(chan *httptest.ResponseRecorder)
			for range attack.requests {
				go func() {
					w := httptest.NewRecorder()
					servedTo(t, l, w, attack.verb, "mallory", "192.0.2.1:1234")
					answers <- w
				}()
			}
			told := func(w *httptest.ResponseRecorder) {
				if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "this user at this address") {
					t.Errorf("one %s too many: %d %v %s", attack.verb, w.Code, w.Header(), w.Body)
				}
			}
			for range attack.served {
				<-running
			}
			for range attack.requests - attack.served - attack.waiting {
				told(<-answers)
			}
			for _, remote := range []string{"192.0.2.1:1235", "192.0.2.2:1234"} {
				for range 100 {
					w := httptest.NewRecorder()
					if servedTo(t, l, w, attack.verb, "ann", remote); w.Code != http.StatusOK {
						t.Fatalf("another user's %s from %s: %d %s", attack.verb, remote, w.Code, w.Body)
					}
				}
			}
			close(release)
			for range attack.waiting {
				<-running
			}
			for range attack.served + attack.waiting {
				if w := <-answers; w.Code != http.StatusOK {
					t.Errorf("a %s in flight: %d", attack.verb, w.Code)
				}
			}
			for _, c := range []*class{l.reads, l.lists, l.writes, l.long} {
				nothingKept(t, c)
			}
		})
	}
}

// TestRefusedRequestsAreCounted: refused requests are counted by kind and by the bound that they
// would have exceeded.
func TestRefusedRequestsAreCounted(t *testing.T) {
	const kind = "change"
	o := options()
	o.Refused = NewRefused(metrics.NewKubeRegistry())
	count := func() float64 {
		n, err := testutil.GetCounterMetricValue(o.Refused.requests.WithLabelValues(kind, string(byAddress)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	l := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), o).(*requestLimits)
	l.writes.perCaller = 0
	before := count()
	served(t, l, httptest.NewRecorder(), "create")
	if got := count() - before; got < 1 {
		t.Errorf("a change that was refused counts for %v", got)
	}
}

// TestListsThatAreNotReadHoldUpNoOthers: a list that waits for its reader does not delay other
// lists.
func TestListsThatAreNotReadHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("items"))
		w.(http.Flusher).Flush()
	}), options()).(*requestLimits)
	l.turns.max = 1
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
	if held(l.turns) != 0 {
		t.Errorf("%d turns are held after all requests", held(l.turns))
	}
}

// TestAttackWatchesThatBeginTakeTurns: a watch sends existing objects in its turn, and waits for
// changes without one. If thousands of watches wait, another user's watch does not wait for all of
// them.
func TestAttackWatchesThatBeginTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flood = 1000
		next := make(chan struct{}) // lets the watch that has the turn continue
		var mu sync.Mutex           // when they leave, all run at once
		var began []string
		l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			end := Begin(r.Context())
			u, _ := request.UserFrom(r.Context())
			mu.Lock()
			began = append(began, u.GetName())
			mu.Unlock()
			_, _ = w.Write([]byte("existing"))
			<-next
			end()
			_, _ = w.Write([]byte("live"))
			<-r.Context().Done()
		}), options()).(*requestLimits)
		l.turns.max = 1
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		watch := func(name string) {
			go servedIn(ctx, l, httptest.NewRecorder(), "watch", name, "192.0.2.1:1234")
		}
		for range flood {
			watch("mallory")
		}
		synctest.Wait()
		if len(began) != 1 {
			t.Fatalf("%d watches begin at once", len(began))
		}
		watch("ann")
		synctest.Wait()
		turns := 0
		for ; began[len(began)-1] != "ann"; turns++ {
			next <- struct{}{}
			synctest.Wait()
			if turns > flood/2 {
				t.Fatalf("another user's watch waits for %d of a flood", turns)
			}
		}
		leave()
		close(next)
		synctest.Wait()
		nothingKept(t, l.turns)
		nothingKept(t, l.long)
	})
}

// TestAttackListsThatAreReadKeepTheirTurn: a list keeps its turn while its reader reads at once,
// because encryption needs the processor, too. A list whose reader is slow waits without a turn.
func TestAttackListsThatAreReadKeepTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		write := func(takes time.Duration) (mine bool, during []bool) {
			w := &timedWriter{takes: takes, turns: turns}
			of := &turn{ResponseWriter: w, turns: turns, ctx: t.Context(), waits: 1}
			of.reacquire()
			for range 2 {
				_, _ = of.Write([]byte("items"))
			}
			mine = of.mine.Load()
			of.release()
			return mine, w.kept
		}
		for takes, want := range map[time.Duration][]bool{0: {true, true}, quickWrite / 2: {true, true}, quickWrite * 2: {false, false}} {
			mine, kept := write(takes)
			if !mine || !slices.Equal(kept, want) {
				t.Errorf("a reader that takes %s: the turn is kept during two writes: %v, want %v; after them %v", takes, kept, want, mine)
			}
			if held(turns) != 0 {
				t.Errorf("%d turns are held after all requests", held(turns))
			}
		}
	})
}

// TestAttackManyMetrics: metrics and the API's description are computed from many objects, so they
// take turns, as lists do.
func TestAttackManyMetrics(t *testing.T) {
	var l *requestLimits
	turns := 0
	l = WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { turns = held(l.turns) }), options()).(*requestLimits)
	for path, want := range map[string]int{"/metrics": 1, "/openapi/v2": 1, "/readyz": 0, "/tidewaiter/summary": 0} {
		ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{Verb: "get", Path: path})
		l.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		if turns != want || held(l.turns) != 0 {
			t.Errorf("%s held %d turns, want %d", path, turns, want)
		}
	}
}

// held returns how many turns are held.
func held(turns *class) int {
	turns.mu.Lock()
	defer turns.mu.Unlock()
	return turns.running
}

// timedWriter is a response whose reader takes a given time.
type timedWriter struct {
	httptest.ResponseRecorder
	takes time.Duration
	turns *class
	kept  []bool // whether the turn was kept, at the end of each write
}

func (w *timedWriter) Write(p []byte) (int, error) {
	time.Sleep(w.takes)
	w.kept = append(w.kept, held(w.turns) == 1)
	return len(p), nil
}

// blockedWriter is a response whose reader reads nothing until it is released.
type blockedWriter struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (b *blockedWriter) Write(p []byte) (int, error) {
	b.writing <- struct{}{}
	<-b.release
	return b.ResponseRecorder.Write(p)
}

// CloseNotify is there because net/http's own responses have it.
func (b *blockedWriter) CloseNotify() <-chan bool { return nil }

// TestListsThatPauseHoldUpNoOthers: a list that waits for anything but its reader does not delay
// other lists, even if two of its goroutines wait at once.
func TestListsThatPauseHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	l := WithRequestLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), options()).(*requestLimits)
	l.turns.max = 1
	other := func() {
		t.Helper()
		w := httptest.NewRecorder()
		if served(t, l, w, "list"); w.Code != http.StatusOK {
			t.Errorf("another list: %d", w.Code)
		}
	}
	pausing := *l
	pausing.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if held(l.turns) != 1 {
			t.Error("a list is served without a turn")
		}
		resume := Pause(r.Context())
		other()
		also := Pause(r.Context())
		also()
		other()
		resume()
		if held(l.turns) != 1 {
			t.Error("a list continues without a turn")
		}
	})
	served(t, &pausing, httptest.NewRecorder(), "list")
	if held(l.turns) != 0 {
		t.Errorf("%d turns are held after all requests", held(l.turns))
	}
	Pause(t.Context())() // the request has no turn to give up
}

// TestAttackQuestionsThatReadMuch: a review takes turns like a read, once it has read much.
func TestAttackQuestionsThatReadMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := make(chan struct{})
		var running atomic.Int32
		o := options()
		l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			Read(r.Context(), 1, 2*muchRead)
			running.Add(1)
			<-next
		}), o).(*requestLimits)
		l.turns.max = 1
		question := &request.RequestInfo{Verb: "create", IsResourceRequest: true, APIGroup: "tidewaiter.dev", Resource: "impactreviews"}
		for range 50 {
			go servedAs(t.Context(), l, httptest.NewRecorder(), question, "admin", "192.0.2.1:1234")
		}
		synctest.Wait()
		if n := running.Load(); n != 1 {
			t.Errorf("%d reviews that read much run at once", n)
		}
		close(next)
		synctest.Wait()
		nothingKept(t, l.turns)
		nothingKept(t, l.reads)
	})
}

// TestAttackReadsOfOneObjectThatReadMuch: once a read of one object has read much, it takes turns
// with lists until it ends. A read that reads little takes none. Another user's read does not wait
// for a whole flood.
func TestAttackReadsOfOneObjectThatReadMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flood = 200
		next := make(chan struct{}) // lets a request that has read much continue
		var mu sync.Mutex
		var began []string
		var left context.Context
		l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u, _ := request.UserFrom(r.Context())
			Read(r.Context(), 1, muchRead/2)
			if u.GetName() == "modest" {
				return
			}
			Read(r.Context(), muchRead/2/ofObject, 0)
			mu.Lock()
			began, left = append(began, u.GetName()), r.Context()
			mu.Unlock()
			Read(r.Context(), 1, muchRead)
			<-next
			_, _ = w.Write([]byte("much"))
		}), options()).(*requestLimits)
		l.turns.max = 1
		for range flood {
			go served(t, l, httptest.NewRecorder(), "get")
		}
		synctest.Wait()
		if len(began) != 1 {
			t.Fatalf("%d requests read much at once", len(began))
		}
		servedTo(t, l, httptest.NewRecorder(), "get", "modest", "192.0.2.1:1234")
		go servedTo(t, l, httptest.NewRecorder(), "get", "ann", "192.0.2.1:1234")
		go servedTo(t, l, httptest.NewRecorder(), "list", "list", "192.0.2.1:1234")
		for turns := 0; !slices.Contains(began, "ann"); turns++ {
			synctest.Wait()
			if turns > flood/2 {
				t.Fatalf("another user's read waits for %d of a flood", turns)
			}
			next <- struct{}{}
			synctest.Wait()
		}
		close(next)
		synctest.Wait()
		nothingKept(t, l.turns)
		nothingKept(t, l.reads)
		Read(left, 1, 2*muchRead) // by a goroutine of a request that has timed out
		nothingKept(t, l.turns)
	})
}

// TestCheapReadsTakeNoTurn: a read that is always cheap takes no turn, and allocates nothing for
// one.
func TestCheapReadsTakeNoTurn(t *testing.T) {
	o := options()
	o.Cheap = func(r *http.Request, _ *request.RequestInfo) bool { return r.Header.Get("Accept") == "" }
	l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Read(r.Context(), 1, 2*muchRead)
	}), o).(*requestLimits)
	l.turns.max = 0
	served(t, l, httptest.NewRecorder(), "get")
	nothingKept(t, l.turns)
}
