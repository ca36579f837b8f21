package limits

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// RequestOptions bound the requests in flight. Zero is no bound for MaxReads and
// MaxWrites, as it is for kube-apiserver.
type RequestOptions struct {
	// MaxReads bounds requests that read one object, and a quarter of it those
	// that read many.
	MaxReads int
	// MaxWrites bounds requests that change something.
	MaxWrites int
	// LongRunning says which requests run for as long as the client likes.
	LongRunning request.LongRunningRequestCheck
	// Connections holds the connections that requests come by, of which those
	// with a request in flight are not idle.
	Connections *Connections
}

const (
	// maxLongRunning bounds watches and followed logs.
	maxLongRunning = 5000
	// maxWaiting bounds the requests of one kind that wait for a place, and
	// patience how long each does.
	maxWaiting = 1024
	patience   = 5 * time.Second
)

// WithRequestLimits bounds the requests in flight before next by kind: reads of
// one object, reads of many, changes, and what runs long. Unlike the API server's
// own limit it makes no exception for administrators, who are all the callers
// there are. A request that comes when its kind is full waits for five seconds
// and is then answered 429. One caller, that is a user at an address, has at most
// three quarters of a kind, and a place that becomes free goes to the caller with
// the fewest.
//
// Reads of many objects take turns besides, two for each processor. A read of one
// object so waits for a few others at most, however many lists there are. A list
// gives its turn up while it waits for its reader, or for anything else by [Pause].
//
// It stands behind authentication, and before impersonation, by which one caller
// could be many.
func WithRequestLimits(next http.Handler, o RequestOptions) http.Handler {
	l := &requestLimits{
		next: next, o: o,
		reads: newShared(o.MaxReads), lists: newShared((o.MaxReads + 3) / 4), writes: newShared(o.MaxWrites),
		long:  newClass(maxLongRunning, threeQuarters(maxLongRunning), 0, 0),
		turns: make(chan struct{}, 2*runtime.GOMAXPROCS(0)),
	}
	return l
}

func threeQuarters(n int) int { return n - n/4 }

// newShared returns a class whose requests may wait, nil for one without bound.
func newShared(max int) *class {
	if max <= 0 {
		return nil
	}
	return newClass(max, threeQuarters(max), maxWaiting, patience)
}

type requestLimits struct {
	next                       http.Handler
	o                          RequestOptions
	reads, lists, writes, long *class
	turns                      chan struct{}
}

// ServeHTTP implements http.Handler.
func (l *requestLimits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		http.Error(w, "the request's path was not looked at before its limits", http.StatusInternalServerError)
		return
	}
	who := caller{}
	if c := l.o.Connections.begin(r.RemoteAddr); c != nil {
		defer l.o.Connections.end(c)
		who.address = c.address
	} else {
		who.address = Address(r.RemoteAddr)
	}
	if u, ok := request.UserFrom(ctx); ok {
		who.user = u.GetName()
	}
	class, name := l.class(r, info)
	if class != nil {
		if !class.enter(ctx, who) {
			metrics.RecordDroppedRequest(r, info, metrics.APIServerComponent, class == l.writes)
			metrics.RecordRequestTermination(r, info, metrics.APIServerComponent, http.StatusTooManyRequests)
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("Too many requests: %d %s are being served. Please try again later.", class.max, name), http.StatusTooManyRequests)
			return
		}
		defer class.leave(who)
	}
	if class != nil && class == l.lists {
		t := &turn{ResponseWriter: w, turns: l.turns, ctx: ctx, waits: 1}
		t.take()
		defer t.give()
		w = responsewriter.WrapForHTTP1Or2(t)
		r = r.WithContext(context.WithValue(ctx, turnKey{}, t))
	}
	l.next.ServeHTTP(w, r)
}

// class returns the class of a request and what its requests are called.
func (l *requestLimits) class(r *http.Request, info *request.RequestInfo) (*class, string) {
	if l.o.LongRunning != nil && l.o.LongRunning(r, info) {
		return l.long, "watches and logs"
	}
	switch info.Verb {
	case "get", "head", "options":
		return l.reads, "reads"
	case "list", "deletecollection":
		return l.lists, "lists"
	}
	return l.writes, "changes"
}

// Pause gives up the turn of a request, if it has one, while it waits for something else
// than its reader. The request waits for its next turn in resume.
func Pause(ctx context.Context) (resume func()) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return func() {}
	}
	t.give()
	return t.take
}

// turnKey is the context's key of a *turn.
type turnKey struct{}

// turn is a response that is written to in turns.
type turn struct {
	http.ResponseWriter
	turns chan struct{}
	ctx   context.Context

	mu    sync.Mutex
	waits int // of parts of the request, of which each gives the turn up
	mine  bool
}

// take waits for a turn, if no other part of the request waits. Without one the request
// is over: whatever is left of it sees that itself.
func (t *turn) take() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits--; t.waits > 0 {
		return
	}
	select {
	case t.turns <- struct{}{}:
		t.mine = true
	case <-t.ctx.Done():
	}
}

func (t *turn) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waits++
	if t.mine {
		<-t.turns
		t.mine = false
	}
}

// Write implements http.ResponseWriter.
func (t *turn) Write(p []byte) (int, error) {
	t.give()
	defer t.take()
	return t.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (t *turn) Flush() {
	t.give()
	defer t.take()
	t.ResponseWriter.(http.Flusher).Flush()
}

// Unwrap returns the response that t writes to.
func (t *turn) Unwrap() http.ResponseWriter { return t.ResponseWriter }
