package podlogs

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// fileStream is the answer to a log request that is read from a file.
type fileStream struct {
	path           string
	opts           logOptions
	stdout, stderr bool // which streams are wanted
	container      *container
	slots          *room.Room // where the stream returns its slot when it ends
}

var _ rest.ResourceStreamer = (*fileStream)(nil)

func (*fileStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the receiver, which never changes.
func (s *fileStream) DeepCopyObject() runtime.Object { return s }

// InputStream starts reading. Reading ends, and its goroutine with it, when the
// log has been read, when ctx ends (the client left), or when the returned
// stream is closed.
func (s *fileStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	who := ""
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		who = user.GetName()
	}
	if !s.slots.TryAdd(who, 0, 1) {
		return nil, false, "", apierrors.NewTooManyRequests("too many pod logs are being read, by this user or by all; try again when one has ended", 1)
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	// A write waits for a reader, and does not see that ctx ends.
	context.AfterFunc(ctx, func() { w.Close() })
	go func() {
		defer s.slots.Remove(who, 1)
		defer cancel()
		w.CloseWithError(s.copyTo(ctx, w))
	}()
	return &closer{r, cancel}, s.opts.follow, "text/plain", nil
}

// copyTo writes the log to w. An error in the middle cannot be put into an HTTP answer
// that has begun, so it is written as a last line, as the kubelet does.
func (s *fileStream) copyTo(ctx context.Context, w io.Writer) error {
	err := newLogReader(s, w).copy(ctx)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	_, err = fmt.Fprintf(w, "\nthe log ends here because reading failed: %v\n", err)
	return err
}

// closer ends a stream whose reader has left, also one that waits for lines.
type closer struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (c *closer) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

// since is the time from which a log is wanted; zero for all of it.
func since(now time.Time, seconds *int64, at time.Time) time.Time {
	if seconds != nil {
		return now.Add(-time.Duration(min(*seconds, int64(math.MaxInt64/time.Second))) * time.Second)
	}
	return at
}
