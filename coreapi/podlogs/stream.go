package podlogs

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

// fileStream is the answer to a log request that is read from a file.
type fileStream struct {
	path           string
	opts           logs.LogOptions
	stdout, stderr bool // which streams are wanted
	container      *container
	slots          chan struct{} // the stream gives back the slot it holds when it ends
}

var _ rest.ResourceStreamer = (*fileStream)(nil)

func (*fileStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the receiver, which nothing changes.
func (s *fileStream) DeepCopyObject() runtime.Object { return s }

// InputStream starts reading. Reading ends, and its goroutine with it, when the
// log has been read, when ctx ends (the client left), or when the returned
// stream is closed.
func (s *fileStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	select {
	case s.slots <- struct{}{}:
	default:
		return nil, false, "", errTooMany(cap(s.slots))
	}
	ctx, cancel := context.WithCancel(ctx)
	// The reader logs the text of incomplete lines; a container's output has
	// no place in the server's log.
	ctx = klog.NewContext(ctx, logr.Discard())
	r, w := io.Pipe()
	go func() {
		defer func() { <-s.slots }()
		defer cancel()
		w.CloseWithError(s.copyTo(ctx, w))
	}()
	return &closer{r, cancel}, s.opts.Follow, "text/plain", nil
}

// copyTo writes the log to w. An error in the middle has no place in an HTTP
// answer that has begun, so it is written as a last line, as the kubelet does.
func (s *fileStream) copyTo(ctx context.Context, w io.Writer) error {
	err := s.read(ctx, w)
	if err == nil || ctx.Err() != nil {
		return nil
	}
	_, err = fmt.Fprintf(w, "\nthe log ends here, reading on failed: %v\n", err)
	return err
}

// read reads the file, and the one that replaced it if that happened before
// rotation was watched for.
func (s *fileStream) read(ctx context.Context, w io.Writer) error {
	counted := &countingWriter{Writer: w}
	var stdout, stderr io.Writer // a nil interface leaves the stream out
	if s.stdout {
		stdout = counted
	}
	if s.stderr {
		stderr = counted
	}
	opts := s.opts
	for {
		file, err := os.Lstat(s.path)
		if err != nil {
			return err
		}
		if !file.Mode().IsRegular() {
			return fmt.Errorf("the log is a %s now; links are not followed", fileKind(file.Mode()))
		}
		service := &runtimeService{container: s.container, path: s.path, file: file}
		if err := logs.ReadLogs(ctx, s.path, "", &opts, service, stdout, stderr); err != nil || !service.missed {
			return err
		}
		opts.TailLines = nil
		if s.opts.LimitBytes != nil {
			left := *s.opts.LimitBytes - counted.written
			if left <= 0 {
				return nil
			}
			opts.LimitBytes = &left
		}
	}
}

// countingWriter counts the bytes written through it.
type countingWriter struct {
	io.Writer
	written int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.written += int64(n)
	return n, err
}

// closer ends a stream whose reader has gone, also one that waits for lines.
type closer struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (c *closer) Close() error {
	c.cancel()
	return c.PipeReader.Close()
}

// since is the time a log is wanted from, zero for all of it.
func since(now time.Time, seconds *int64, at time.Time) time.Time {
	if seconds != nil {
		return now.Add(-time.Duration(min(*seconds, int64(math.MaxInt64/time.Second))) * time.Second)
	}
	return at
}
