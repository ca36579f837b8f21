package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// BodyBound bounds one body.
type BodyBound struct {
	// Bytes and Values are the most that a body may have. Values are fields and elements of lists.
	Bytes, Values int
	// Value is the weight of one value in bytes: what decoding and checking it takes.
	Value int
}

// weight is the weight of a decoded body with that many bytes and values: it is then there as it
// came, decoded, converted, and encoded for the storage and for the answer.
func (b BodyBound) weight(bytes, values int) int { return 6*bytes + b.Value*values }

// BodyOptions bound the bodies of requests.
type BodyOptions struct {
	// Bound returns the bound of a request's body.
	Bound func(*request.RequestInfo) BodyBound
	// Exempt tells which requests are the server's own. One that waits for another of them must not
	// wait for its turn.
	Exempt func(*http.Request) bool
	// Serializer writes errors.
	Serializer apiruntime.NegotiatedSerializer
	// Refused counts the requests that are refused.
	Refused *Refused
}

const (
	// heldBodies is how many bytes of bodies are held at a time.
	heldBodies = 32 << 20
	// bodyTimeout is how long a sender may take to send its body.
	bodyTimeout = 30 * time.Second
	// lightBody is the weight up to which a body takes no turn.
	lightBody = 512 << 10
	// mostTurns bounds the heavy bodies that are decoded at a time.
	mostTurns = 4
)

// WithBodyLimits reads the bodies of requests that change something before next, and bounds what
// they take.
//
// All bodies together have room for 32 MiB. If it is short, the user whose bodies take most loses
// one that waits, which is answered 429; so is a body that waits for its turn for five seconds. A
// body with more values than its bound is answered 413 and never decoded.
//
// Of a user's bodies of more than 64 KiB, or more than 512 KiB when they are decoded, one at a time
// is read and decoded, and the next after a rest, see [place]. So are bodies that are over their
// bound answered. A body that weighs more than 512 KiB also takes a turn when it is decoded. There
// is one turn fewer than there are processors, and four at most, and the next goes to the user with
// the fewest. The request gives both up while it waits for its reader, or for anything else with
// [Pause].
//
// It stands behind authorization, so nothing of a request is read that is refused.
func WithBodyLimits(next http.Handler, o BodyOptions) http.Handler {
	return &bodyLimits{next: next, o: o, held: NewBodies(1<<20, heldBodies), places: newPlaces(), turns: newTurns(min(max(1, runtime.GOMAXPROCS(0)-1), mostTurns))}
}

type bodyLimits struct {
	next http.Handler
	o    BodyOptions
	held *Bodies
	// places are those of heavy bodies of one user each, turns those of all that are decoded.
	places, turns *class
}

// ServeHTTP implements http.Handler.
func (l *bodyLimits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Body == nil || r.Body == http.NoBody || r.Method == http.MethodGet || r.Method == http.MethodHead || l.o.Exempt(r) {
		l.next.ServeHTTP(w, r)
		return
	}
	who := caller{address: Address(r.RemoteAddr)}
	if u, ok := request.UserFrom(r.Context()); ok {
		who.user = u.GetName()
	}
	bound := l.o.Bound(info)
	ctx, lost := context.WithCancel(r.Context())
	defer lost()
	found := newValues(r.Header.Get("Content-Type"), r.Body, bound.Values)
	r = r.WithContext(r.Context())
	r.Body = found
	own := &place{class: l.places, who: who}
	defer own.finish()
	body, err := l.held.read(w, r, &Body{of: l.held, who: who.user, reading: true, larger: func(r io.Reader) (io.Reader, bool) {
		return inPlace{r, own, ctx}, own.acquire(ctx)
	}}, bound.Bytes, bodyTimeout, lost)
	defer body.Release()
	var n int
	if err == nil {
		if n = found.count(body.Bytes()); n > bound.Values {
			err = errManyValues
		}
	}
	if err != nil {
		own.refuse()
		if errors.Is(err, ErrTooLarge) || errors.Is(err, errManyValues) {
			// Most such bodies are refused before they need a place. They wait for one to be
			// answered.
			body.Release()
			own.spend(ofRefusal)
			own.acquire(ctx)
		}
		l.refuse(w, r, info, bound, err)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body.Bytes()))
	if bound.weight(len(body.Bytes()), n) > lightBody {
		waiting, over := context.WithTimeout(ctx, maxWait)
		defer over()
		t := &turn{ResponseWriter: w, turns: l.turns, who: who, ctx: waiting, own: own, waits: 1}
		t.reacquire()
		defer t.release()
		if t.ctx = r.Context(); !t.mine.Load() {
			l.refuse(w, r, info, bound, ErrBusy)
			return
		}
		w = responsewriter.WrapForHTTP1Or2(t)
		r = r.WithContext(context.WithValue(r.Context(), turnKey{}, t))
	}
	if !body.Keep() {
		l.refuse(w, r, info, bound, ErrBusy)
		return
	}
	l.next.ServeHTTP(w, r)
}

var errManyValues = errors.New("the body has too many values")

// refuse says why a body is not taken.
func (l *bodyLimits) refuse(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, bound BodyBound, err error) {
	var status *apierrors.StatusError
	switch {
	case errors.Is(err, ErrTooLarge):
		status = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", bound.Bytes))
	case errors.Is(err, errManyValues):
		status = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a body may have at most %d fields and list elements; aliases, and all special characters in YAML, count more", bound.Values))
	case errors.Is(err, ErrBusy):
		l.o.Refused.count("body", byUser)
		status = apierrors.NewTooManyRequests("Too many requests: the bodies of this user's requests take too much memory. Please try again later.", 1)
	case errors.Is(err, ErrSlow):
		status = apierrors.NewTimeoutError(fmt.Sprintf("the body did not arrive within %s", bodyTimeout), 0)
	default:
		status = apierrors.NewBadRequest("the body ended early")
	}
	responsewriters.ErrorNegotiated(status, l.o.Serializer, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
}
