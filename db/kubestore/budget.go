package kubestore

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// A request that decodes many objects holds their memory until its answer is written, and its
// client decides how long that takes, up to the request's deadline. So such requests of all callers
// are admitted by weight.
const (
	// listBytes bounds the memory of all large lists together, and watchBytes the memory of watches
	// that send existing objects. One user may have half of each.
	listBytes, watchBytes = 128 << 20, 64 << 20
	// smallList is the size of the largest small list, in stored bytes.
	smallList = 256 << 10
	// decodedWeight is how many bytes of memory a stored byte takes when it is decoded.
	decodedWeight = 4
	// pageBytes is how many stored bytes are read at a time to be decoded. watchPageBytes is the same
	// for a watch, which keeps the rest of its page while it waits for its reader.
	pageBytes, watchPageBytes = 256 << 10, 64 << 10
	// largestPage is how many stored bytes end a page of a list before its limit does. Otherwise a
	// page of 500 objects, kubectl's limit, could have 6 GiB.
	largestPage = 16 << 20
	// listPatience is how long a large list waits for room.
	listPatience = 2 * time.Second
)

// budget bounds the decoded objects that all requests together hold.
type budget struct {
	lists, watches *room.Room
	patience       time.Duration // of a large list
	page           int64         // stored bytes of a page, unless one object is larger
	// pause is called before a request waits for room or for the disk, and resume afterwards.
	pause func(context.Context) (resume func())
	// begin, if not nil, is called before a watch reads existing objects, and end when all of them are
	// sent.
	begin func(context.Context) (end func())
	// read is called before objects are decoded.
	read func(ctx context.Context, objects, stored int)
	// user returns the user of a request.
	user func(context.Context) string

	mu   sync.Mutex
	held map[listing]int64 // bytes that lists hold
}

// listing are the lists of one request below one prefix.
type listing struct {
	request *endpointsrequest.RequestInfo
	prefix  string
}

func newBudget(pause, begin func(context.Context) func(), read func(context.Context, int, int), user func(context.Context) string) *budget {
	if user == nil {
		user = func(context.Context) string { return "" }
	}
	if pause == nil {
		pause = func(context.Context) func() { return func() {} }
	}
	if read == nil {
		read = func(context.Context, int, int) {}
	}
	return &budget{
		lists: room.New(listBytes, listBytes/2), watches: room.New(watchBytes, watchBytes/2),
		patience: listPatience, page: largestPage, pause: pause, begin: begin, read: read, user: user, held: map[listing]int64{},
	}
}

// admitWatch waits until a watch may hold n bytes.
func (b *budget) admitWatch(ctx context.Context, n int64) error {
	defer b.pause(ctx)()
	return b.watches.Add(ctx, b.user(ctx), 0, n)
}

// admitList waits until a list below prefix may decode stored bytes; before it waits, it calls
// wait. The bytes count until the request ends, because the answer may be in memory until then. For
// a list that may select all objects, they also cover the request's other such lists below the
// prefix: a request that reads parts of a collection one after another would otherwise wait for
// itself. A part that it reads twice counts once. Pages have the prefix "" and count separately. A
// caller without a request, such as the server itself, does not wait.
func (b *budget) admitList(ctx context.Context, prefix string, stored int64, wait func()) error {
	info, ok := endpointsrequest.RequestInfoFrom(ctx)
	if !ok || ctx.Done() == nil {
		return nil
	}
	if w, ok := ctx.Value(wholeKey{}).(*wholeList); ok && prefix == "" {
		return b.admitPage(ctx, w, decodedWeight*stored, wait)
	}
	lists := listing{info, prefix}
	b.mu.Lock()
	n, has := min(decodedWeight*stored, listBytes)-b.held[lists], int64(0)
	for of, held := range b.held {
		if of.request == info {
			has += held
		}
	}
	b.mu.Unlock()
	if n <= 0 {
		return nil
	}
	if err := b.acquireList(ctx, has, n, wait); err != nil {
		return err
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
		b.lists.Remove(b.user(ctx), n)
	})
	return nil
}

// acquireList waits for a moment until a request that has some bytes may have n more; before it
// waits, it calls wait.
func (b *budget) acquireList(ctx context.Context, has, n int64, wait func()) error {
	who := b.user(ctx)
	if b.lists.TryAdd(who, has, n) {
		return nil
	}
	wait()
	defer b.pause(ctx)()
	waiting, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if b.lists.Add(waiting, who, has, n) == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return ended(err)
	}
	return apierrors.NewTooManyRequests("too many lists are in memory: select less, ask for pages, or try again", 1)
}
