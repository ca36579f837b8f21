package limits

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// RequestOptions bound the requests in flight. As in kube-apiserver, zero means no bound for
// MaxReads and MaxWrites.
type RequestOptions struct {
	// MaxReads bounds requests that read one object. A quarter of it bounds those that read
	// many.
	MaxReads int
	// MaxWrites bounds requests that change something.
	MaxWrites int
	// Cheap says which reads of one object cost little, however large the object is. They never
	// take turns. nil is none.
	Cheap func(*http.Request, *request.RequestInfo) bool
	// Question says which requests only ask, though they are sent as creations. They count as
	// reads. nil is none.
	Question func(*http.Request, *request.RequestInfo) bool
	// LongRunning says which requests run for as long as the client likes.
	LongRunning request.LongRunningRequestCheck
	// Connections holds the connections that requests come by. A connection with a request in
	// flight is not idle.
	Connections *Connections
	// Refused counts the requests that are refused.
	Refused *Refused
}

const (
	// maxLongRunning bounds watches and followed logs.
	maxLongRunning = 5000
	// maxWaiting bounds the requests of one kind that wait for a place. maxWait is how long
	// each waits.
	maxWaiting = 1024
	maxWait    = 5 * time.Second
	// quickWrite is how long a list may wait for its reader and keep its turn.
	quickWrite = 2 * time.Millisecond
	// muchRead is how many stored bytes a read of one object may decode without a turn. Each object
	// counts for ofObject more, as finding it costs something, too.
	muchRead, ofObject = 128 << 10, 4 << 10
)

// WithRequestLimits bounds the requests in flight before next by kind: reads of one object,
// reads of many, changes, and what runs long. Unlike the API server's own limit it makes no
// exception for administrators: in a small installation they are the only callers.
//
// One user has at most three quarters of a kind, and half of it at one address. Of the reads
// of many, and of what runs long, it is half and a quarter. A request waits when it would be
// above that, or when its kind is full. After five seconds it is answered 429. It is answered
// 429 at once when as many of its caller's requests wait as the caller may have in flight.
// Long-running requests do not wait. A free place goes to the user with the fewest requests, at the
// address with the fewest. All who prove nothing are one user.
//
// Reads of many objects also take turns, and so do watches while they send what exists, see
// [Begin], and reads of one object that is put together from many, once they have read much,
// see [Read]. There is one turn fewer than there are processors. So a read of one object finds a
// processor, however many lists there are. The next turn, too, goes to the user with the
// fewest. A request gives its turn up while it waits for its reader, or for anything else with
// [Pause].
//
// It stands behind authentication, and before impersonation, by which one caller
// could be many.
func WithRequestLimits(next http.Handler, o RequestOptions) http.Handler {
	lists := (o.MaxReads + 3) / 4
	return &requestLimits{
		next: next, o: o,
		reads:  newShared(o.MaxReads, parts(o.MaxReads, 3), parts(o.MaxReads, 2)),
		lists:  newShared(lists, parts(lists, 2), parts(lists, 1)),
		writes: newShared(o.MaxWrites, parts(o.MaxWrites, 3), parts(o.MaxWrites, 2)),
		long:   newClass(maxLongRunning, parts(maxLongRunning, 2), parts(maxLongRunning, 1), 0, 0),
		turns:  newTurns(max(1, runtime.GOMAXPROCS(0)-1)),
	}
}

// newTurns returns a class of which one caller may have all. Requests wait for a turn without
// a limit of time or number of their own. They are in flight, which is bounded.
func newTurns(max int) *class {
	return newClass(max, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt64)
}

// parts returns so many quarters of n, at least one unless n is 0.
func parts(n, quarters int) int { return (n*quarters + 3) / 4 }

// newShared returns a class whose requests may wait, nil for a class without bound.
func newShared(max, perUser, perCaller int) *class {
	if max <= 0 {
		return nil
	}
	return newClass(max, perUser, perCaller, maxWaiting, maxWait)
}

type requestLimits struct {
	next                       http.Handler
	o                          RequestOptions
	reads, lists, writes, long *class
	turns                      *class
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
		defer l.o.Connections.endRequest(c)
		who.address = c.address
	} else {
		who.address = Address(r.RemoteAddr)
	}
	if u, ok := request.UserFrom(ctx); ok {
		who.user = u.GetName()
	}
	class, kind := l.class(r, info)
	if class != nil {
		if reached := class.enter(ctx, who); reached != "" {
			l.refuse(w, r, info, class, kind, reached)
			return
		}
		defer class.leave(who)
	}
	if class != nil && (class == l.lists || class == l.long) {
		t := &turn{ResponseWriter: w, turns: l.turns, who: who, ctx: ctx, waits: 1}
		if info.Verb == "list" { // a request that deletes many waits for the disk
			t.reacquire()
			defer t.release()
		}
		w, r = t.of(r)
	}
	if class != nil && class == l.reads && (l.o.Cheap == nil || !l.o.Cheap(r, info)) {
		t := &turn{ResponseWriter: w, turns: l.turns, who: who, ctx: ctx, waits: 1, byCost: true}
		defer t.finish()
		w, r = t.of(r)
	}
	l.next.ServeHTTP(w, r)
}

// refuse answers 429.
func (l *requestLimits) refuse(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, c *class, kind string, reached bound) {
	metrics.RecordDroppedRequest(r, info, metrics.APIServerComponent, c == l.writes)
	metrics.RecordRequestTermination(r, info, metrics.APIServerComponent, http.StatusTooManyRequests)
	l.o.Refused.count(kind, reached)
	of, n := "all callers", c.max
	switch reached {
	case byUser:
		of, n = "this user", c.perUser
	case byAddress:
		of, n = "this user at this address", c.perCaller
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, fmt.Sprintf("Too many requests: of the kind %s, %d of %s are being served. Please try again later.", kind, n, of), http.StatusTooManyRequests)
}

// class returns the class of a request and what its requests are called.
func (l *requestLimits) class(r *http.Request, info *request.RequestInfo) (*class, string) {
	if l.o.LongRunning != nil && l.o.LongRunning(r, info) {
		return l.long, "watch"
	}
	if l.o.Question != nil && l.o.Question(r, info) {
		return l.reads, "read"
	}
	switch info.Verb {
	case "get", "head", "options":
		return l.reads, "read"
	case "list", "deletecollection":
		return l.lists, "list"
	}
	return l.writes, "change"
}

// Pause gives up the turn of a request, if it has one, while the request waits for something
// else than its reader. resume waits for the next turn.
func Pause(ctx context.Context) (resume func()) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return func() {}
	}
	t.pause()
	return t.reacquire
}

// Begin waits for the turn of a watch that is about to read what exists. The watch has the
// turn until end.
func Begin(ctx context.Context) (end func()) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return func() {}
	}
	t.reacquire()
	return t.release
}

// Read counts the objects and stored bytes that a request reads. A read of one
// object that comes to read much waits here for its turn, and has it until the request ends.
func Read(ctx context.Context, objects, stored int) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if ok && t.byCost && t.read.Add(int64(stored+objects*ofObject)) > muchRead && !t.begun.Swap(true) {
		t.reacquire()
	}
}

type turnKey struct{}

// turn is a response that is written in turns.
type turn struct {
	http.ResponseWriter
	turns *class
	who   caller
	ctx   context.Context
	own   *place // what the turn needs besides; nil for nothing
	slow  bool   // the last write waited for the reader

	byCost bool         // the turn begins when the request has read much
	read   atomic.Int64 // what it has read
	begun  atomic.Bool  // the turn has begun, or the request has ended

	mu    sync.Mutex
	waits int         // how many parts of the request wait; each gives the turn up
	mine  atomic.Bool // the request has the turn
	since time.Time   // when it got the turn
}

// of returns the response and the request that have the turn.
func (t *turn) of(r *http.Request) (http.ResponseWriter, *http.Request) {
	return responsewriter.WrapForHTTP1Or2(t), r.WithContext(context.WithValue(r.Context(), turnKey{}, t))
}

// finish ends a turn by cost. The rest of a request that took too long does not begin one.
func (t *turn) finish() {
	if t.begun.Swap(true) {
		t.release()
	}
}

// reacquire waits for a turn, if no other part of the request waits. If there is none, the request
// is over. Whatever is left of it sees that itself.
func (t *turn) reacquire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits--; t.waits > 0 {
		return
	}
	if t.own.acquire(t.ctx) {
		t.mine.Store(t.turns.enter(t.ctx, t.who) == "")
		t.since = time.Now()
	}
}

func (t *turn) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
}

// pause gives up the turn, and what it needs besides.
func (t *turn) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
	t.own.release()
}

func (t *turn) leave() {
	t.waits++
	if t.mine.Swap(false) {
		t.turns.leave(t.who)
		t.own.spend(time.Since(t.since))
	}
}

// unread calls write, which may wait for the reader. Encryption also takes a processor, so a
// write keeps the turn while the reader takes at once what is written. A write that waits for
// longer gives the turn up. So does each later write before it begins, until one is quick
// again.
func (t *turn) unread(write func()) {
	if !t.mine.Load() {
		write()
		return
	}
	if t.slow {
		start := time.Now()
		t.pause()
		write()
		t.slow = time.Since(start) > quickWrite
		t.reacquire()
		return
	}
	given := make(chan struct{})
	late := time.AfterFunc(quickWrite, func() {
		t.pause()
		close(given)
	})
	write()
	if !late.Stop() {
		<-given
		t.slow = true
		t.reacquire()
	}
}

// WriteHeader implements http.ResponseWriter.
func (t *turn) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		t.own.refuse()
	}
	t.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (t *turn) Write(p []byte) (n int, err error) {
	t.unread(func() { n, err = t.ResponseWriter.Write(p) })
	return n, err
}

// Flush implements http.Flusher.
func (t *turn) Flush() { t.unread(t.ResponseWriter.(http.Flusher).Flush) }

// Unwrap returns the response that t writes to.
func (t *turn) Unwrap() http.ResponseWriter { return t.ResponseWriter }
