package storedjson

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/web/limits"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/gzipparts"
)

// watchOptions are the options of a watch without a selector that begins with the existing objects.
type watchOptions struct {
	query url.Values
	// bookmark is true if a bookmark follows the existing objects.
	bookmark bool
	timeout  time.Duration // 0 for none
	list     storage.ListOptions
}

// newWatchOptions reads the options of a request. ok is false for any other kind of watch, and for
// one that the API server refuses.
func newWatchOptions(query url.Values) (_ watchOptions, ok bool) {
	for name := range query {
		switch name {
		case "watch", "sendInitialEvents", "resourceVersion", "resourceVersionMatch", "allowWatchBookmarks", "timeoutSeconds":
		default:
			return watchOptions{}, false
		}
	}
	in := metainternalversion.ListOptions{}
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, &in); err != nil {
		return watchOptions{}, false
	}
	metainternalversion.SetListOptionsDefaults(&in, true)
	if errs := metainternalversionvalidation.ValidateListOptions(&in, true); len(errs) > 0 || !in.Watch || in.SendInitialEvents == nil || !*in.SendInitialEvents {
		return watchOptions{}, false
	}
	o := watchOptions{query: query, bookmark: in.AllowWatchBookmarks}
	if in.TimeoutSeconds != nil {
		o.timeout = time.Duration(*in.TimeoutSeconds) * time.Second
	}
	o.list = storage.ListOptions{
		ResourceVersion:      in.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		Predicate:            storage.Everything,
		Recursive:            true,
	}
	return o, true
}

// watch answers with an event for each existing object. Then next continues from their revision. If
// watch reads a damaged object before it has written anything, next answers from the beginning. If
// it reads one later, the object becomes an event of type ERROR, as from next.
func (k *kind) watch(w http.ResponseWriter, req *http.Request, opts watchOptions, next http.Handler) {
	ctx := req.Context()
	began := time.Now()
	if opts.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opts.timeout)
		defer cancel()
	}
	// A watch begins when it can reserve the memory that it needs. Until then it holds none.
	share := k.initial.reserve(ctx)
	defer share.release()
	end := sync.OnceFunc(limits.Begin(ctx))
	defer end()
	if share.wait(ctx, weight(watchRun)) != nil {
		return // the client is gone, or the request's time is up
	}
	p, ok := k.begin(ctx, opts.list, watchRun, share)
	if !ok || p.rev == 0 {
		share.release()
		end()
		next.ServeHTTP(w, req)
		return
	}
	// Sending existing objects may take longer than history is kept, so hold it. Once next's watch has
	// begun, it has a hold of its own.
	s := &eventStream{ResponseWriter: w, flush: http.NewResponseController(w).Flush, begun: k.source.Hold(p.rev)}
	defer s.begun()
	// As in the API server, an answer is compressed only if a bookmark ends it.
	s.compressed = opts.bookmark && responsewriters.ContentEncodingSupported(req, features.WatchListCompression) == "gzip"
	done := false
	info, _ := request.RequestInfoFrom(ctx)
	metrics.RecordLongRunning(req, info, metrics.APIServerComponent, func() { done = k.sendInitial(ctx, s, p, opts) })
	end()
	if share.release(); !done {
		return
	}
	query := maps.Clone(opts.query)
	query.Del("sendInitialEvents")
	query.Del("resourceVersionMatch")
	query.Set("resourceVersion", strconv.FormatInt(p.rev, 10))
	if opts.timeout > 0 {
		left := (opts.timeout - time.Since(began)).Round(time.Second)
		query.Set("timeoutSeconds", strconv.Itoa(max(1, int(left/time.Second))))
	}
	rest := *req.URL
	rest.RawQuery = query.Encode()
	req = req.WithContext(req.Context())
	req.URL = &rest
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(s), req)
	s.Flush() // ends a gzip member that an error has left open
}

// sendInitial writes the events of existing objects. It reports whether the watch continues.
func (k *kind) sendInitial(ctx context.Context, s *eventStream, p *scan, opts watchOptions) bool {
	s.Header().Set("Content-Type", runtime.ContentTypeJSON)
	f := k.plain
	var to sink = plainSink{s.ResponseWriter}
	if s.compressed {
		f = k.gzip
		s.Header().Set("Content-Encoding", "gzip")
		s.Header().Add("Vary", "Accept-Encoding")
	}
	s.ResponseWriter.WriteHeader(http.StatusOK)
	if s.compressed {
		to = gzipparts.NewWriter(s.ResponseWriter)
	}
	events := metrics.WatchEvents.WithContext(ctx).WithLabelValues(k.Resource.Group, k.Resource.Version, k.Resource.Resource)
	ending := request.ServerShutdownSignalFrom(ctx)
	err := f.send(ctx, p, framing{before: f.piece(eventHead(watch.Added)), after: f.piece([]byte(eventEnd))}, to, func(objects int) error {
		events.Add(float64(objects))
		if ending != nil {
			select {
			case <-ending.ShuttingDown():
				return writeError{context.Canceled}
			default:
			}
		}
		if err := s.flush(); err != nil {
			return writeError{err}
		}
		return nil
	})
	var ended writeError
	var text []byte
	switch {
	case err == nil && opts.bookmark:
		text, err = k.bookmark(p.rev)
	case err != nil && ctx.Err() == nil && !errors.As(err, &ended):
		if k.unreadable.Load() != nil {
			slog.ErrorContext(ctx, "a watch ended at an object that cannot be read", "resource", k.Resource, "err", err)
		} else {
			slog.Log(ctx, verbose, "a watch ended before it had sent all existing objects", "resource", k.Resource, "err", err)
		}
		// encoding a Status does not fail
		text, _ = json.Marshal(responsewriters.ErrorToAPIStatus(err))
		text = append(append(eventHead(watch.Error), text...), eventEnd...)
	}
	if len(text) > 0 {
		b := f.piece(text)
		if err := to.Write(b.bytes, b.sum); err != nil {
			return false
		}
		events.Inc()
	}
	// A gzip member ends here; live events are members of their own.
	if to.Close() != nil || s.flush() != nil || err != nil {
		return false
	}
	if received, ok := request.ReceivedTimestampFrom(ctx); ok && opts.bookmark {
		metrics.RecordWatchListLatency(ctx, k.Resource, "cluster", time.Since(received))
	}
	return true
}

// bookmark returns the event that ends the initial events.
func (k *kind) bookmark(rev int64) ([]byte, error) {
	obj := k.newFunc()
	if err := k.source.Versioner().UpdateObject(obj, uint64(rev)); err != nil {
		return nil, err
	}
	if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
		return nil, err
	}
	text, err := runtime.Encode(k.codec, obj)
	if err != nil {
		return nil, err
	}
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	return append(append(eventHead(watch.Bookmark), text...), eventEnd...), nil
}

// eventHead is the text of an event before its object, and eventEnd the text after it.
func eventHead(t watch.EventType) []byte { return []byte(`{"type":"` + string(t) + `","object":`) }

const eventEnd = "}\n"

// eventStream receives the events of a watch, after the status. If it compresses, the text between
// two flushes becomes a gzip member, as in the API server.
type eventStream struct {
	http.ResponseWriter
	flush      func() error
	begun      func() // called when next's watch has begun
	compressed bool
	member     *gzip.Writer
}

var members = responsewriters.NewGzipWriterPoolOrDie()

// WriteHeader implements http.ResponseWriter.
func (s *eventStream) WriteHeader(int) { s.begun() }

// Unwrap implements responsewriter.UserProvidedDecorator, and is for http.ResponseController.
func (s *eventStream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Write implements http.ResponseWriter.
func (s *eventStream) Write(b []byte) (int, error) {
	if !s.compressed {
		return s.ResponseWriter.Write(b)
	}
	if s.member == nil {
		s.member = members.Get().(*gzip.Writer)
		s.member.Reset(s.ResponseWriter)
	}
	return s.member.Write(b)
}

// Flush implements http.Flusher. If it fails, the next Write returns the error.
func (s *eventStream) Flush() {
	if s.member != nil {
		// The member is flushed before it is closed: otherwise Go's reader returns nothing of the last
		// block before the next member begins.
		_ = s.member.Flush()
		_ = s.member.Close()
		s.member.Reset(nil)
		members.Put(s.member)
		s.member = nil
	}
	_ = s.flush()
}

// writeError is an error of writing to the client, whose connection may have ended.
type writeError struct{ error }

// Unwrap is for errors.Is.
func (e writeError) Unwrap() error { return e.error }
