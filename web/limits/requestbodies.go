package limits

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	// Bytes and Values bound a body. Values are fields and elements of lists.
	Bytes, Values int
	// Value is the weight of one value in bytes: what decoding and checking it takes.
	Value int
}

// weight returns the memory that a body with these bytes and values takes when it is decoded. It
// exists in several copies: as received, decoded, converted, and encoded for the storage and for
// the answer.
func (b BodyBound) weight(bytes, values int) int { return 6*bytes + b.Value*values }

// BodyOptions bound the bodies of requests.
type BodyOptions struct {
	// Bound returns the bound of a request's body.
	Bound func(*request.RequestInfo) BodyBound
	// Serializer writes errors.
	Serializer apiruntime.NegotiatedSerializer
	// Refused counts the requests that are refused.
	Refused *Refused
	// Turns are shared with reads. If it is nil, bodies have their own turns.
	Turns *Turns
}

const (
	// heldBodies is how many bytes all bodies together hold at a time.
	heldBodies = 32 << 20
	// bodyTimeout is how long a sender may take to send its body.
	bodyTimeout = 30 * time.Second
	// lightBody is the weight of the heaviest body that takes no turn.
	lightBody = 512 << 10
	// maxTurns bounds the heavy bodies that are decoded at a time.
	maxTurns = 4
)

// WithBodyLimits reads the bodies of changing requests before it calls next, and bounds their
// memory and processor time.
//
// All bodies together may hold 32 MiB. If that is exceeded, the user whose bodies take most loses a
// body that is still waiting, and its request gets 429. A body that waits for its turn for five
// seconds gets 429, too. A body with more values than its bound gets 413 and is never decoded.
//
// A heavy body has more than 64 KiB, or weighs more than 512 KiB when it is decoded. Each user's
// heavy bodies are read and decoded one at a time, with a rest after each, see [place]. A body over
// its bound also waits for this place before it is answered. To be decoded, a body that weighs more
// than 512 KiB also takes a turn, which it shares with reads, see [WithRequestLimits]; bodies have
// at most four. The next turn goes to the user with the fewest. While the request waits for its
// reader, or for anything else with [Pause], it gives up place and turn.
//
// It runs after authorization, so that the body of a forbidden request is not read.
func WithBodyLimits(next http.Handler, o BodyOptions) http.Handler {
	o.Turns = cmp.Or(o.Turns, NewTurns())
	return &bodyLimits{next: next, o: o, held: NewBodies(1<<20, heldBodies), places: newPlaces(), turns: newTurns(maxTurns)}
}

type bodyLimits struct {
	next http.Handler
	o    BodyOptions
	held *Bodies
	// places bound the heavy bodies of each user, turns the bodies that are decoded.
	places, turns *class
}

// ServeHTTP implements http.Handler.
func (l *bodyLimits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Body == nil || r.Body == http.NoBody || r.Method == http.MethodGet || r.Method == http.MethodHead || fromWithin(r) {
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
			// Most bodies over their bound are noticed before they have a place. They wait for one before
			// they are answered.
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
		t := &turn{ResponseWriter: w, turns: l.turns, all: l.o.Turns.class, who: who, ctx: waiting, own: own, waits: 1}
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

// fromWithin reports whether a request came from within this process. It takes no turn: the request
// that sends it may have a turn already, and waits for its answer.
func fromWithin(r *http.Request) bool { return r.RemoteAddr == localRemote }

// localRemote is the remote address of a connection within the process. No other connection has it.
const localRemote = "pipe"

var errManyValues = errors.New("the body has too many values")

// refuse answers with the reason why a body is refused.
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
