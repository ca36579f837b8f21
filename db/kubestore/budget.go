package kubestore

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// A request that decodes many objects holds their memory until its answer is written. Its
// client decides how long that takes, up to the request's deadline. So such requests are
// admitted by weight, for every caller.
const (
	// listBytes bounds the memory of all large lists together, and watchBytes that of
	// watches that send what exists.
	listBytes, watchBytes = 128 << 20, 64 << 20
	// smallList is up to how many stored bytes a list is small.
	smallList = 256 << 10
	// decodedWeight is how many bytes of memory a stored byte takes when it is decoded.
	decodedWeight = 4
	// pageBytes are read at a time where objects are decoded. watchPageBytes are read at a
	// time by a watch, which keeps the rest of its page while it waits for its reader.
	pageBytes, watchPageBytes = 256 << 10, 64 << 10
	// largestPage ends a page of a list early, as the limit does: a page of 500 objects, as
	// kubectl asks for, could otherwise have 6 GiB.
	largestPage = 16 << 20
	// listPatience is how long a large list waits for others to end.
	listPatience = 2 * time.Second
)

// budget bounds the decoded objects that all requests together hold.
type budget struct {
	lists, watches *semaphore.Weighted
	patience       time.Duration // of a large list
	page           int64         // stored bytes of a page, unless one object is larger
	// pause is called before a request waits for others or for the disk, and the function that
	// it returns after that.
	pause func(context.Context) (resume func())
	// begin, if not nil, is called before a watch reads what exists, and the function that it
	// returns when all of that is sent.
	begin func(context.Context) (end func())
	// read is called before objects are decoded.
	read func(ctx context.Context, objects, stored int)

	mu   sync.Mutex
	held map[listing]int64 // of lists
}

// listing are the lists of one request below one prefix.
type listing struct {
	request *endpointsrequest.RequestInfo
	prefix  string
}

func newBudget(pause, begin func(context.Context) func(), read func(context.Context, int, int)) *budget {
	if pause == nil {
		pause = func(context.Context) func() { return func() {} }
	}
	if read == nil {
		read = func(context.Context, int, int) {}
	}
	return &budget{
		lists: semaphore.NewWeighted(listBytes), watches: semaphore.NewWeighted(watchBytes),
		patience: listPatience, page: largestPage, pause: pause, begin: begin, read: read, held: map[listing]int64{},
	}
}

// admitWatch waits until a watch may hold n bytes.
func (b *budget) admitWatch(ctx context.Context, n int64) error {
	defer b.pause(ctx)()
	return b.watches.Acquire(ctx, n)
}

// admitList waits until a list below prefix may have stored bytes decoded; it calls wait before.
// The bytes count until the request ends, as the answer may be in memory until then. Those of a
// list that may come to select all there is cover the request's other lists of that kind below the
// prefix: it reads parts of a collection, one after another, and would wait for itself. A part that
// it reads twice counts once. Pages, whose prefix is "", count each. A caller without a request,
// such as the server itself, need not wait.
func (b *budget) admitList(ctx context.Context, prefix string, stored int64, wait func()) error {
	info, ok := endpointsrequest.RequestInfoFrom(ctx)
	if !ok || ctx.Done() == nil {
		return nil
	}
	lists := listing{info, prefix}
	b.mu.Lock()
	n := min(decodedWeight*stored, listBytes) - b.held[lists]
	b.mu.Unlock()
	if n <= 0 {
		return nil
	}
	if !b.lists.TryAcquire(n) {
		wait()
		defer b.pause(ctx)()
		waiting, cancel := context.WithTimeout(ctx, b.patience)
		defer cancel()
		if b.lists.Acquire(waiting, n) != nil {
			if err := ctx.Err(); err != nil {
				return ended(err)
			}
			return apierrors.NewTooManyRequests("too many lists are in memory: select less, ask for pages, or try again", 1)
		}
	}
	if prefix != "" {
		b.mu.Lock()
		b.held[lists] += n
		b.mu.Unlock()
	}
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		delete(b.held, lists)
		b.mu.Unlock()
		b.lists.Release(n)
	})
	return nil
}
