package storedjson

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/filecache"
)

// TestInformersShareOnePass: a hundred informers that start at once read the disk about once, even
// if the cache is too small for all objects. The informer that is ahead reads and caches the
// objects, and the others use the cache.
func TestInformersShareOnePass(t *testing.T) {
	l := newLists(t)
	const objects, informers = 1000, 100
	for i := range objects {
		l.create(t, fmt.Sprintf("pod-%04d", i))
	}
	for name, f := range map[string]*encoding{"plain": l.reader.plain, "gzip": l.reader.gzip} {
		f.kept.Close()
		f.kept = filecache.New[sums](t.TempDir(), 1<<20) // the plain list has 4 MiB
		frame := framing{before: f.piece(eventHead("ADDED")), after: f.piece([]byte(eventEnd))}
		var runs []func() (*run, error, bool)
		l.reader.scans.Add(informers)
		l.transformer.GetReadsAndReset()
		for range informers {
			p, ok := l.reader.begin(t.Context(), storage.ListOptions{Predicate: storage.Everything, Recursive: true}, watchRun, &reservation{of: newMemoryPool(1<<30, 1<<30)})
			if !ok {
				t.Fatal("a scan did not begin")
			}
			next, stop := iter.Pull2(func(yield func(*run, error) bool) {
				if err := f.each(t.Context(), p, frame, func(r *run) error {
					if !yield(r, nil) {
						return fmt.Errorf("stopped")
					}
					return nil
				}); err != nil {
					yield(nil, err)
				}
			})
			t.Cleanup(stop)
			runs = append(runs, next)
		}
		// Each informer reads the same few objects before it writes.
		if begun := l.transformer.GetReadsAndReset(); begun > informers*headObjects {
			t.Errorf("%s: beginning read %d objects", name, begun)
		}
		sent := make([]int, informers)
		for going := informers; going > 0; {
			going = 0
			for i, next := range runs {
				r, err, ok := next()
				if err != nil {
					t.Fatal(err)
				}
				if ok {
					sent[i] += len(r.Items)
					going++
				}
			}
		}
		l.reader.scans.Add(-informers)
		for i, n := range sent {
			if n != objects {
				t.Errorf("%s: informer %d was sent %d objects", name, i, n)
			}
		}
		if reads := l.transformer.GetReadsAndReset(); reads > 2*objects {
			t.Errorf("%s: %d informers read %d objects of %d", name, informers, reads, objects)
		}
	}
}

// yielding is a source that lets other goroutines run before it reads.
type yielding struct{ Source }

func (s yielding) ScanStored(ctx context.Context, from string, rev int64, limit, size int, count bool, each func(string, int64, []byte, error)) (int64, bool, int64, error) {
	for range 1000 {
		runtime.Gosched()
	}
	return s.Source.ScanStored(ctx, from, rev, limit, size, count, each)
}

// TestInformersInStepShareOnePass: informers that start at once need the same objects at the same
// moment. One of them reads and encodes the objects for all.
func TestInformersInStepShareOnePass(t *testing.T) {
	l := newLists(t)
	const objects, informers = 500, 20
	for i := range objects {
		l.create(t, fmt.Sprintf("pod-%04d", i))
	}
	l.reader.source = yielding{l.reader.source}
	for name, f := range map[string]*encoding{"plain": l.reader.plain, "gzip": l.reader.gzip} {
		frame := framing{before: f.piece(eventHead("ADDED")), after: f.piece([]byte(eventEnd))}
		var scans []*scan
		for range informers {
			p, ok := l.reader.begin(t.Context(), storage.ListOptions{Predicate: storage.Everything, Recursive: true}, watchRun, &reservation{of: newMemoryPool(1<<30, 1<<30)})
			if !ok {
				t.Fatal("a scan did not begin")
			}
			scans = append(scans, p)
		}
		l.transformer.GetReadsAndReset()
		var all sync.WaitGroup
		for _, p := range scans {
			all.Go(func() {
				sent := 0
				err := f.each(t.Context(), p, frame, func(r *run) error {
					sent += len(r.Items)
					return nil
				})
				if err != nil || sent != objects {
					t.Errorf("%s: %d objects, %v", name, sent, err)
				}
			})
		}
		all.Wait()
		// Two informers may both encode some objects, if one begins in the middle of the other's objects.
		if reads := l.transformer.GetReadsAndReset(); reads > 3*objects {
			t.Errorf("%s: %d informers read %d objects of %d", name, informers, reads, objects)
		}
	}
}

// TestInitialEventsMeetDamage: an object that cannot be read becomes an ERROR event of the watch,
// or the request is left to the handler that reports it.
func TestInitialEventsMeetDamage(t *testing.T) {
	for _, encoding := range []string{"identity", "gzip"} {
		l := newLists(t)
		for i := range 250 {
			l.create(t, fmt.Sprintf("pod-%03d", i))
		}
		watch := func() string {
			opts, ok := newWatchOptions(url.Values{"watch": {"1"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}})
			if !ok {
				t.Fatal("the options are not taken")
			}
			w := httptest.NewRecorder()
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods?watch=1", nil)
			req.Header.Set("Accept-Encoding", encoding)
			l.reader.watch(w, req, opts, http.HandlerFunc(leftToOthers))
			return w.Body.String()
		}
		text := watch()
		if n := strings.Count(text, `{"type":"ADDED","object":{"kind":"Pod",`); n != 250 || !strings.HasSuffix(text, "}\nleft to others") {
			t.Errorf("%d events, and then %.100s", n, text[max(0, len(text)-100):])
		}
		dbtest.Damage(t, l.db, "/pods/ns/pod-200")
		l.reader.plain.kept.Close() // otherwise the damaged object is not read again
		text = watch()
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, `{"type":"ERROR","object":{"kind":"Status"`) && !strings.HasPrefix(last, `{"type":"ERROR","object":{"`) ||
			!strings.Contains(last, "pod-200") || !strings.Contains(last, string(metav1.StatusFailure)) {
			t.Errorf("after %d events: %.300s", len(lines)-1, last)
		}
		if len(lines)-1 > 200 {
			t.Errorf("%d events before the damaged object, which is the 201st", len(lines)-1)
		}
		if !l.reader.meetsUnreadable(t.Context()) {
			t.Error("the damage is not known to the next watch")
		}
		l.remove(t, "/pods/ns/pod-200")
	}
}

// forgetfulClient is a client that makes the store drop history when it gets the first byte.
type forgetfulClient struct {
	http.ResponseWriter
	forget func()
}

func (c *forgetfulClient) Write(b []byte) (int, error) {
	c.forget()
	return c.ResponseWriter.Write(b)
}

func (c *forgetfulClient) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// TestInitialEventsOutlastHistory: sending existing objects may take longer than the history
// window. The watch sends them as they were when it began, and then every later change.
func TestInitialEventsOutlastHistory(t *testing.T) {
	t.Parallel()
	clock := testclock.NewFakeClock(time.Now())
	const round = 6 * time.Minute // history is kept for five
	l := newLists(t, func(o *db.Options) { o.Clock, o.MaintenanceInterval, o.ChangelogBytes = clock, round, 1000 })
	const pods = 500
	for i := range pods {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	opts, ok := newWatchOptions(url.Values{"watch": {"1"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}})
	if !ok {
		t.Fatal("the options are not taken")
	}
	w := httptest.NewRecorder()
	client := &forgetfulClient{ResponseWriter: w, forget: sync.OnceFunc(func() {
		if err := l.Delete(t.Context(), "/pods/ns/pod-450", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		for range 2 {
			dbtest.AwaitWaiters(t, clock, 1)
			clock.Step(round)
			dbtest.AwaitWaiters(t, clock, 1)
		}
	})}
	var next watch.Event
	l.reader.watch(client, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods?watch=1", nil), opts, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// This is the API server's order: first the watch, then the status.
		goesOn, err := l.Watch(req.Context(), "/pods/", storage.ListOptions{ResourceVersion: req.URL.Query().Get("resourceVersion"), Recursive: true, Predicate: storage.Everything})
		if err != nil {
			t.Error(err)
			return
		}
		defer goesOn.Stop()
		w.WriteHeader(http.StatusOK)
		next = <-goesOn.ResultChan()
	}))
	if n := strings.Count(w.Body.String(), `{"type":"ADDED","object":{"kind":"Pod",`); n != pods {
		t.Errorf("%d of %d objects were sent, and then %.300s", n, pods, w.Body.String()[max(0, w.Body.Len()-300):])
	}
	if next.Type != watch.Deleted {
		t.Errorf("the event after the existing objects is %s %v, want a deletion", next.Type, next.Object)
	}
}
