package kubestore

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Requests that decode many objects hold memory until their answer is written, which is
// as long as their clients like, up to the request's deadline. So they are admitted by
// weight, whoever asks.
const (
	// listBytes is what all large lists together may hold, and watchBytes what watches
	// may that send what exists.
	listBytes, watchBytes = 128 << 20, 64 << 20
	// smallList is how much a list may select, as it is stored, before it is large.
	smallList = 256 << 10
	// decodedWeight is how many bytes of memory a stored byte becomes.
	decodedWeight = 3
	// pageBytes are read at a time where objects are decoded, and watchPageBytes where a watch
	// waits for its reader with the rest of a page.
	pageBytes, watchPageBytes = 256 << 10, 64 << 10
	// largestPage ends a page of a list early, as the limit does: what a client may ask for at a
	// time, as kubectl's 500 objects, is otherwise up to 6 GiB.
	largestPage = 16 << 20
	// listPatience is how long a large list waits for others to end.
	listPatience = 2 * time.Second
)

// budget is what all requests together may hold in decoded objects.
type budget struct {
	lists, watches *semaphore.Weighted
	patience       time.Duration // of a large list
	page           int64         // as they are stored, bytes of a page, or one object more
	// pause, if not nil, is called before a list or a watch waits, and what it returns after that.
	pause func(context.Context) (resume func())
	// begin, if not nil, is called before a watch reads what exists, and what it returns when
	// that is sent.
	begin func(context.Context) (end func())
}

func newBudget(pause, begin func(context.Context) func()) *budget {
	return &budget{
		lists: semaphore.NewWeighted(listBytes), watches: semaphore.NewWeighted(watchBytes),
		patience: listPatience, page: largestPage, pause: pause, begin: begin,
	}
}

// admitWatch waits until a watch may hold n bytes.
func (b *budget) admitWatch(ctx context.Context, n int64) error {
	if b.pause != nil {
		defer b.pause(ctx)()
	}
	return b.watches.Acquire(ctx, n)
}

// admitList waits until a list may have stored bytes decoded, having called wait. They are
// counted until its request ends: until then its answer may be in memory. Who asks without
// a request, as the server itself, need not wait.
func (b *budget) admitList(ctx context.Context, stored int64, wait func()) error {
	if _, ok := endpointsrequest.RequestInfoFrom(ctx); !ok || ctx.Done() == nil {
		return nil
	}
	n := min(decodedWeight*stored, listBytes)
	if !b.lists.TryAcquire(n) {
		wait()
		if b.pause != nil {
			defer b.pause(ctx)()
		}
		waiting, cancel := context.WithTimeout(ctx, b.patience)
		defer cancel()
		if b.lists.Acquire(waiting, n) != nil {
			if err := ctx.Err(); err != nil {
				return ended(err)
			}
			return apierrors.NewTooManyRequests("too many lists are in memory: select less, ask for pages, or try again", 1)
		}
	}
	context.AfterFunc(ctx, func() { b.lists.Release(n) })
	return nil
}
