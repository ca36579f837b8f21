package pull

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// body reads an answer within its limits. Time limits count only the time spent waiting for the
// registry, not the time that the reader takes.
type body struct {
	inner  io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	clock  clock.WithDelayedExecution
	limits Limits
	host   string
	job    *jobBudget
	read   *atomic.Int64 // bytes of all answers
	// limit is how many bytes are read at most, and left how many of those may still
	// come.
	limit, left int64

	waited time.Duration
	got    int64

	err  error // of the last Read, if that failed
	once sync.Once
	done func()
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more than allowed, to see whether there are more
	}
	var n int
	err := b.waiting(func() (err error) {
		n, err = b.inner.Read(p)
		return err
	})
	b.got += int64(n)
	b.read.Add(int64(n))
	if over := b.job.read(n); over != nil {
		err = over
	}
	if b.left -= int64(n); b.left < 0 {
		err = TooLargeError(b.host, 0, b.limit)
		n += int(b.left)
		b.left = 0
	}
	if err == nil && b.waited > b.limits.Stall && float64(b.got) < b.waited.Seconds()*float64(b.limits.MinRate) {
		err = &Error{Reason: Timeout, Message: fmt.Sprintf("%s sent %d bytes in %s, less than %d a second",
			b.host, b.got, b.waited.Round(time.Millisecond), b.limits.MinRate)}
	}
	if err != nil {
		b.err = err
		b.finish()
	}
	return n, err
}

// waiting runs f, which waits for the registry, for Limits.Stall at most.
func (b *body) waiting(f func() error) error {
	start := b.clock.Now()
	stall := b.clock.AfterFunc(b.limits.Stall, func() {
		b.cancel(&Error{Reason: Timeout, Message: fmt.Sprintf("%s sent nothing for %s", b.host, b.limits.Stall)})
	})
	err := f()
	stall.Stop()
	b.waited += b.clock.Since(start)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		// The transport's error for a canceled context says less.
		return context.Cause(b.ctx)
	}
	return err
}

// Close implements io.Closer. It may be called after any Read, and twice.
func (b *body) Close() error {
	b.finish()
	return nil
}

func (b *body) finish() {
	b.once.Do(func() {
		if b.inner != nil {
			b.inner.Close()
		}
		b.cancel(nil)
		b.done()
	})
}
