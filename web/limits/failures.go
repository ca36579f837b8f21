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
	// failingAddresses is how many addresses are told apart. For a new one, the one that was
	// heard of longest ago is forgotten. One takes some 300 bytes.
	failingAddresses = 4096
)

// Failures bounds the requests of each address that fail authentication. Failures of an address
// keep no valid credential out, not even at that address.
type Failures struct {
	mu        sync.Mutex
	addresses *lru.Cache // of *failing, by Address
	refused   *Refused
	now       func() time.Time
}

// failing is an address that has failed.
type failing struct {
	left *rate.Limiter
	turn chan struct{} // holds one while a credential is checked
}

// NewFailures returns bounds that no address has reached. refused counts the requests that are
// refused.
func NewFailures(refused *Refused) *Failures {
	return &Failures{addresses: lru.New(failingAddresses), refused: refused, now: time.Now}
}

// Check waits until the credential of a request from a remote address may be checked. It
// does not wait while the address has failures left. When it has none, its credentials are
// checked one after the other, so that wrong ones take no more than one processor. The
// caller calls done after its check. Check fails when ctx is done before its turn comes.
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

// fail counts a failure of an address. It returns 0, or how long the address is to wait
// when it has no failures left.
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

// WithFailureLimit answers requests that failed authentication. next answers them while their
// address has failures left, and then the answer is 429.
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
