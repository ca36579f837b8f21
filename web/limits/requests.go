package limits

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	// MaxReads bounds requests that read one object. A quarter of it bounds requests that read many.
	MaxReads int
	// MaxWrites bounds requests that change something.
	MaxWrites int
	// Cheap reports which reads of one object cost little, however large the object is. They never
	// take turns. nil means none.
	Cheap func(*http.Request, *request.RequestInfo) bool
	// LongRunning reports which requests run for as long as the client wants.
	LongRunning request.LongRunningRequestCheck
	// Connections are the connections of the requests. A connection with a request in flight is not
	// idle.
	Connections *Connections
	// Refused counts the requests that are refused.
	Refused *Refused
	// Turns are shared with work outside the handler chain. If it is nil, the requests have their own
	// turns.
	Turns *Turns
}

const (
	// maxLongRunning bounds watches and followed logs.
	maxLongRunning = 5000
	// maxWaiting bounds the requests of one kind that wait for a place. maxWait is how long
	// each waits.
	maxWaiting = 1024
	maxWait    = 5 * time.Second
	// quickWrite is how long a list keeps its turn while it waits for its reader.
	quickWrite = 2 * time.Millisecond
	// muchRead is how many stored bytes a read of one object may decode without a turn. Each object
	// counts as ofObject more bytes, because finding it has a cost, too.
	muchRead, ofObject = 128 << 10, 4 << 10
)

// WithRequestLimits bounds the requests in flight in next, by kind: reads of one object, reads of
// many, changes, and long-running requests. Unlike the API server's own limit it makes no exception
// for administrators: in a small installation they are the only callers.
//
// One user gets at most three quarters of a kind, and half of it at one address; for reads of many
// and long-running requests, a half and a quarter. A request that would exceed a bound waits, and
// gets 429 after five seconds. It gets 429 at once if as many requests of its caller wait as the
// caller may have in flight. Long-running requests do not wait. A free place goes to the user with
// the fewest requests, at the address with the fewest. All anonymous requests belong to one user.
// Metrics and the API's description count as reads of many.
//
// Three kinds of reads also take turns: reads of many objects; watches, while they send existing
// objects, see [Begin]; and reads of one object that is computed from many, after they have read
// much, see [Read]. There is one turn fewer than there are processors, so that a read of one object
// finds a processor however many lists run. The next turn, too, goes to the user with the fewest. A
// request gives up its turn while it waits for its reader, or for anything else with [Pause].
//
// It runs after authentication and before impersonation: otherwise one caller could impersonate
// many users and multiply its share.
func WithRequestLimits(next http.Handler, o RequestOptions) http.Handler {
	lists := (o.MaxReads + 3) / 4
	o.Turns = cmp.Or(o.Turns, NewTurns())
	return &requestLimits{
		next: next, o: o,
		reads:  newShared(o.MaxReads, parts(o.MaxReads, 3), parts(o.MaxReads, 2)),
		lists:  newShared(lists, parts(lists, 2), parts(lists, 1)),
		writes: newShared(o.MaxWrites, parts(o.MaxWrites, 3), parts(o.MaxWrites, 2)),
		long:   newClass(maxLongRunning, parts(maxLongRunning, 2), parts(maxLongRunning, 1), 0, 0),
		turns:  o.Turns.class,
	}
}

// parts returns quarters/4 of n, rounded up.
func parts(n, quarters int) int { return (n*quarters + 3) / 4 }

// newShared returns a class whose requests may wait; nil, which bounds nothing, if max is 0.
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
		http.Error(w, "the request's path was not parsed before its limits were checked", http.StatusInternalServerError)
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
		if class == l.lists && info.Verb != "deletecollection" { // deletecollection waits for the disk
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

// class returns the class of a request and its name.
func (l *requestLimits) class(r *http.Request, info *request.RequestInfo) (*class, string) {
	if l.o.LongRunning != nil && l.o.LongRunning(r, info) {
		return l.long, "watch"
	}
	if isQuestion(info) {
		return l.reads, "read"
	}
	if !info.IsResourceRequest && (strings.HasPrefix(info.Path, "/metrics") || strings.HasPrefix(info.Path, "/openapi")) {
		return l.lists, "list" // each answer is computed from many objects
	}
	switch info.Verb {
	case "get", "head", "options":
		return l.reads, "read"
	case "list", "deletecollection":
		return l.lists, "list"
	}
	return l.writes, "change"
}

// isQuestion reports whether a request creates a review: the server computes it from many objects,
// and stores nothing.
func isQuestion(info *request.RequestInfo) bool {
	return info.Verb == "create" && info.APIGroup == "tidewaiter.dev" && slices.Contains([]string{"referencereviews", "localreferencereviews", "impactreviews"}, info.Resource)
}

// User returns the authenticated user of a request, or "" if there is none. It ignores
// impersonation, so that one user cannot hold the shares of many.
func User(ctx context.Context) string {
	if t, ok := ctx.Value(turnKey{}).(*turn); ok {
		return t.who.user
	}
	if u, ok := request.UserFrom(ctx); ok {
		return u.GetName()
	}
	return ""
}

// Pause gives up the turn of a request, if it has one, while the request waits for anything but its
// reader. resume waits for the next turn.
func Pause(ctx context.Context) (resume func()) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return func() {}
	}
	t.pause()
	return t.reacquire
}

// Begin waits for the turn of a watch that is about to read existing objects, or to decode a large
// event. The watch has the turn until end. A watch that has the turn must not begin again: it would
// wait for itself.
func Begin(ctx context.Context) (end func()) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return func() {}
	}
	t.reacquire()
	return t.release
}

// Read counts the objects and stored bytes that a request reads. When a read of one object has read
// much, it waits here for its turn, and keeps the turn until the request ends.
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
	all   *class // turns of all kinds, if turns are of one kind
	who   caller
	ctx   context.Context
	own   *place // the place that the turn needs, too; nil for none
	slow  bool   // the last write waited for the reader

	byCost bool         // the turn begins when the request has read much
	read   atomic.Int64 // what it has read
	begun  atomic.Bool  // the turn has begun, or the request has ended

	mu    sync.Mutex
	waits int         // how many goroutines of the request wait; the request has no turn while one does
	mine  atomic.Bool // the request has the turn
	since time.Time   // when it got the turn
}

// of returns the response and the request through which a handler uses the turn.
func (t *turn) of(r *http.Request) (http.ResponseWriter, *http.Request) {
	return responsewriter.WrapForHTTP1Or2(t), r.WithContext(context.WithValue(r.Context(), turnKey{}, t))
}

// finish ends a turn by cost. A request that still runs after its timeout gets no more turns.
func (t *turn) finish() {
	if t.begun.Swap(true) {
		t.release()
	}
}

// reacquire waits for a turn, unless another goroutine of the request still waits. If it gets no
// turn, the request's context has ended, and the request ends by itself.
func (t *turn) reacquire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waits--; t.waits > 0 {
		return
	}
	if t.own.acquire(t.ctx) && t.turns.enter(t.ctx, t.who) == "" {
		if t.all != nil && t.all.enter(t.ctx, t.who) != "" {
			t.turns.leave(t.who)
			return
		}
		t.mine.Store(true)
		t.since = time.Now()
	}
}

func (t *turn) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave()
}

// pause gives up the turn and the place.
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
		if t.all != nil {
			t.all.leave(t.who)
		}
		t.own.spend(time.Since(t.since))
	}
}

// yieldingWrite calls write, which may wait for the reader. A write keeps the turn at first,
// because encryption takes a processor, too. If it waits for the reader longer than quickWrite, it
// gives up the turn. Each later write then gives up the turn before it begins, until a write is
// quick again.
func (t *turn) yieldingWrite(write func()) {
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
	t.yieldingWrite(func() { n, err = t.ResponseWriter.Write(p) })
	return n, err
}

// Flush implements http.Flusher.
func (t *turn) Flush() { t.yieldingWrite(t.ResponseWriter.(http.Flusher).Flush) }

// Unwrap returns the response that t writes to.
func (t *turn) Unwrap() http.ResponseWriter { return t.ResponseWriter }
