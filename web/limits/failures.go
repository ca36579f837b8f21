package limits

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

const (
	// failureBurst is how many requests of an address may fail authentication before the address
	// gets 429. failuresPerSecond is how many more may fail after that.
	failureBurst      = 500
	failuresPerSecond = 10
	// failingAddresses is how many addresses are remembered. A further address replaces the least
	// recently used one. Each takes some 300 bytes.
	failingAddresses = 4096
)

// Failures bounds the requests of each address that fail authentication. A valid credential is
// accepted even from an address that has reached the bound.
type Failures struct {
	mu        sync.Mutex
	addresses *lru.Cache // of *failing, by Address
	refused   *Refused
	now       func() time.Time
}

// failing is the state of an address from which authentication failed.
type failing struct {
	left *rate.Limiter
	turn chan struct{} // holds one while a credential is checked
}

// NewFailures returns a Failures without any failure. refused counts the requests that it refuses.
func NewFailures(refused *Refused) *Failures {
	return &Failures{addresses: lru.New(failingAddresses), refused: refused, now: time.Now}
}

// Check waits until the credential of a request from a remote address may be checked. While the
// address is below its bound, Check does not wait. Above it, the credentials of the address are
// checked one after the other, so that wrong ones take no more than one processor. The caller calls
// done after its check. Check fails if ctx ends first.
func (f *Failures) Check(ctx context.Context, remote string) (done func(), err error) {
	kept, ok := f.addresses.Get(Address(remote))
	if !ok {
		return func() {}, nil
	}
	a := kept.(*failing)
	if a.left.TokensAt(f.now()) >= 1 {
		return func() {}, nil
	}
	select {
	case a.turn <- struct{}{}:
		return func() { <-a.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fail counts a failure of an address. It returns 0 or, if the address is above its bound, how long
// it should wait.
func (f *Failures) fail(address string) (wait time.Duration) {
	f.mu.Lock()
	kept, ok := f.addresses.Get(address)
	if !ok {
		kept = &failing{left: rate.NewLimiter(failuresPerSecond, failureBurst), turn: make(chan struct{}, 1)}
		f.addresses.Add(address, kept)
	}
	f.mu.Unlock()
	now, left := f.now(), kept.(*failing).left
	if left.AllowN(now, 1) {
		return 0
	}
	return time.Duration((1 - left.TokensAt(now)) / failuresPerSecond * float64(time.Second))
}

// WithFailureLimit answers requests that failed authentication: with next while their address is
// below its bound, and above it with 429.
func WithFailureLimit(next http.Handler, f *Failures) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := f.fail(Address(r.RemoteAddr))
		if wait == 0 {
			next.ServeHTTP(w, r)
			return
		}
		f.refused.count("login", byAddress)
		if r.ProtoMajor == 2 {
			w.Header().Set("Connection", "close") // as the API server does with strangers
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(wait.Seconds(), 1)))))
		http.Error(w, fmt.Sprintf("Too many requests: at most %d failed authentications a second are allowed from this address. Please check the credential and try again later.", failuresPerSecond), http.StatusTooManyRequests)
	})
}
