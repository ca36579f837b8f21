package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"
)

// However many pages a person asks for at once, three of them hold answers of the API. Other people
// get theirs meanwhile.
func TestAttackManyPages(t *testing.T) {
	came, answer := make(chan string, 100), make(chan struct{})
	var mu sync.Mutex
	now, most := map[string]int{}, 0
	count := func(who string, n int) {
		mu.Lock()
		defer mu.Unlock()
		now[who] += n
		most = max(most, now[who])
	}
	c := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("Authorization")
		if r.URL.Path == whoAmIPath {
			fmt.Fprintf(w, `{"metadata":{"name":%q}}`, who)
			return
		}
		count(who, 1)
		defer count(who, -1)
		came <- who
		<-answer
		w.WriteHeader(http.StatusNotFound)
	}), Options{})
	var pages sync.WaitGroup
	ask := func(who string) {
		pages.Go(func() {
			r := httptest.NewRequest(http.MethodGet, Root+"raw?digest=sha256:ab", nil)
			r.Header.Set("Authorization", who)
			c.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	for range 30 {
		ask("Bearer ann")
	}
	for range maxOfOne {
		<-came
	}
	ask("Bearer ben")
	if who := <-came; who != "Bearer ben" {
		t.Errorf("%s has more pages than %d", who, maxOfOne)
	}
	close(answer)
	pages.Wait()
	if most > maxOfOne {
		t.Errorf("one person had %d pages at once", most)
	}
}

// slowReader is a browser that takes nothing of a page until its connection is ended.
type slowReader struct {
	*httptest.ResponseRecorder
	waits chan struct{} // gets one when it waits
	ended chan struct{}
	once  sync.Once
}

func (r *slowReader) Write([]byte) (int, error) {
	r.waits <- struct{}{}
	<-r.ended
	return 0, os.ErrDeadlineExceeded
}

// SetWriteDeadline is for http.ResponseController.
func (r *slowReader) SetWriteDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Now()) {
		r.once.Do(func() { close(r.ended) })
	}
	return nil
}

// Readers who take nothing of their pages hold no turn. The person with most such text loses the
// page that waits longest.
func TestAttackSlowReaders(t *testing.T) {
	text := strings.Repeat("x", lightPage/2)
	c := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == whoAmIPath {
			fmt.Fprintf(w, `{"metadata":{"name":%q}}`, r.Header.Get("Authorization"))
			return
		}
		fmt.Fprintf(w, "{\"a\":%q}", text)
	}), Options{})
	c.unread.max = 10*len(text) - 1
	var pages sync.WaitGroup
	ask := func(who string) *slowReader {
		reader := &slowReader{ResponseRecorder: httptest.NewRecorder(), waits: make(chan struct{}, 1), ended: make(chan struct{})}
		pages.Go(func() {
			r := httptest.NewRequest(http.MethodGet, Root+"raw?digest=sha256:ab", nil)
			r.Header.Set("Authorization", who)
			c.ServeHTTP(reader, r)
		})
		<-reader.waits
		return reader
	}
	readers := []*slowReader{ask("Bearer ben")}
	for range 3 * maxPages {
		readers = append(readers, ask("Bearer ann"))
	}
	var ended []int
	for i, r := range readers {
		select {
		case <-r.ended:
			ended = append(ended, i)
		default:
		}
	}
	if len(ended) != len(readers)-9 || ended[0] != 1 || ended[len(ended)-1] != len(ended) {
		t.Errorf("of %d unread pages these have ended: %v", len(readers), ended)
	}
	for _, r := range readers {
		_ = r.SetWriteDeadline(time.Unix(1, 0))
	}
	pages.Wait()
	if c.unread.bytes != 0 || len(c.unread.pages) != 0 {
		t.Errorf("%d bytes of %d pages are counted that nobody waits for", c.unread.bytes, len(c.unread.pages))
	}
}

// Of the pages whose answers are large, a person has one at a time. Pages with small answers are
// made meanwhile.
func TestAttackLargeAnswers(t *testing.T) {
	came, answer := make(chan string, 100), make(chan struct{})
	c := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, size := path.Base(r.URL.Path), 10
		if r.URL.Path == whoAmIPath {
			fmt.Fprint(w, `{"metadata":{"name":"ann"}}`)
			return
		}
		if name == "large" {
			size = 2 * lightPage
		}
		fmt.Fprintf(w, "%q", strings.Repeat("x", size))
		came <- name
		<-answer
	}), Options{})
	var pages sync.WaitGroup
	ask := func(name string) {
		pages.Go(func() {
			r := httptest.NewRequest(http.MethodGet, Root+"raw?digest="+name, nil)
			r.Header.Set("Authorization", "Bearer ann")
			w := httptest.NewRecorder()
			if c.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Errorf("%s: %d %.300s", name, w.Code, w.Body)
			}
		})
	}
	ask("large")
	<-came
	ask("large")
	ask("small")
	if name := <-came; name != "small" {
		t.Errorf("a second large answer of one person came")
	}
	close(answer)
	pages.Wait()
}

// A page that would be too large says so, and the commands that show all of it.
func TestLargePage(t *testing.T) {
	layers := l{}
	for i := range 30_000 {
		layers = append(layers, m{"name": fmt.Sprintf("sha256:%064d", i), "size": 1})
	}
	answer := m{"question": m{"reference": "a"}, "state": "Found", "meaning": m{"digest": "sha256:ab"}}
	b := newBrowser(t, map[string]any{"POST " + reviewsPath: m{"status": m{"references": l{answer}}}, "GET " + imagesPath + "/sha256:ab": m{"dockerImageLayers": layers}})
	b.signIn("good")
	if w := b.do(http.MethodGet, Root+"image?ref=a", nil); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "too much to show") || !strings.Contains(w.Body.String(), "tidewaiter describe a") {
		t.Errorf("%d %.2000s", w.Code, w.Body)
	}
}

// A page that follows Events holds one at a time, however many come at once, and none that is
// large: it says that one has come.
func TestAttackLargeEvents(t *testing.T) {
	var got []string
	longest := strings.Repeat("x", maxLive-100)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		for i, message := range []string{"small", strings.Repeat("x", 3<<20), longest, longest, strings.Repeat("x", maxLive), "last"} {
			fmt.Fprintf(&text, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"%d\"},\"message\":%q}}\n", i, message)
		}
		for _, size := range []int{text.Len(), 100_000, 1000} {
			got = nil
			for piece := range slices.Chunk([]byte(text.String()), size) {
				if _, err := w.Write(piece); err != nil {
					t.Error(err)
				}
				if held := w.(*stream).body.Cap(); held > 2*maxLive {
					t.Errorf("%d bytes are held", held)
				}
			}
			if all := strings.Join(got, " "); all != "0 large 2 3 large 5" {
				t.Errorf("in pieces of %d bytes the page was told of %s", size, all)
			}
		}
		fmt.Fprintln(w, `{"type":"ERROR","object":{"code":410,"message":"too old"}}`)
		if _, err := w.Write([]byte("{}\n")); err == nil {
			t.Error("the watch goes on after its end")
		}
	})
	call := &caller{api: api, from: httptest.NewRequest(http.MethodGet, "/", nil)}
	live := New(api, Options{}).liveEvents
	err := call.watch(t.Context(), eventsPath, url.Values{}, asJSON, noTurn{}, func(line []byte) error {
		word := "large"
		if line != nil {
			e := live.of(line)
			if e.err != nil {
				return e.err
			}
			word = e.id
		}
		got = append(got, word)
		return nil
	})
	if !isCode(err, http.StatusGone) {
		t.Errorf("the watch ended with %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := (&visit{Console: New(api, Options{}), r: httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)}).acquireTurn(); !isCode(err, http.StatusTooManyRequests) {
		t.Errorf("a turn of a person who has gone: %v", err)
	}
}

// An Event is read once for all live pages, and what is remembered of Events is bounded.
func TestAttackManyLivePages(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	live := New(http.NotFoundHandler(), Options{Clock: clock}).liveEvents
	line := func(i int) []byte {
		return fmt.Appendf(nil, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"%d\"},\"message\":\"hello\",\"lastTimestamp\":\"2026-11-01T07:59:59Z\"}}\n", i)
	}
	first := live.of(line(0))
	if first.err != nil || first.id != "0" || first.name != "row" || !strings.Contains(first.data, "hello") || !strings.Contains(first.data, "1s ago") {
		t.Errorf("a page is told %+v", first)
	}
	var pages sync.WaitGroup
	for range 50 {
		pages.Go(func() {
			for i := range 10 {
				if e := live.of(line(i)); e.id != fmt.Sprint(i) || i == 0 && e != first {
					t.Errorf("another page is told %+v of event %d", e, i)
				}
			}
		})
	}
	pages.Wait()
	clock.SetTime(clock.Now().Add(liveFor + time.Second))
	if again := live.of(line(0)); again == first || !strings.Contains(again.data, "7s ago") {
		t.Errorf("a page that comes back is told %+v", again)
	}
	for i := range 3 * maxLiveEvents {
		live.of(line(i))
	}
	if len(live.byLine) != maxLiveEvents || len(live.lines) != maxLiveEvents {
		t.Errorf("%d events are remembered, in the order of %d", len(live.byLine), len(live.lines))
	}
}

// Events that the answer had no room for are said to be missing.
func TestEventsWithoutRoom(t *testing.T) {
	b := newBrowser(t, map[string]any{"GET " + eventsPath: func(q url.Values) any {
		if q.Get("limit") == "1" {
			return m{"metadata": m{"remainingItemCount": 41}, "items": l{m{}}}
		}
		return m{"items": l{m{"message": "a", "metadata": m{"annotations": m{"a": strings.Repeat("x", muchOfEvents)}}}, m{"message": "b"}}}
	}})
	b.signIn("good")
	if body := b.do(http.MethodGet, Root+"activity", nil).Body.String(); !strings.Contains(body, "At least 40 more are not shown") {
		t.Error("the page does not say that Events are missing")
	}
}

// oneTurn has turns, of which one task has one at a time, and says if it is written without one.
type oneTurn struct {
	*testing.T
	free chan struct{}
	had  atomic.Int64 // how many there were
}

type ofOneTurn struct {
	http.ResponseWriter
	*oneTurn
	mine bool
}

func (o *oneTurn) of(_ context.Context, w http.ResponseWriter, _, _ string) Turn {
	return &ofOneTurn{ResponseWriter: w, oneTurn: o}
}

func (o *ofOneTurn) Begin() (end func()) {
	o.free <- struct{}{}
	o.had.Add(1)
	o.mine = true
	return func() {
		o.mine = false
		<-o.free
	}
}

func (o *ofOneTurn) Write(p []byte) (int, error) {
	if !o.mine && strings.Contains(string(p), "event: row") {
		o.Errorf("written without a turn: %.80s", p)
	}
	return o.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (o *ofOneTurn) Flush() {}

// Pages are parsed and written in turns that they share with the API's lists, and hold none while
// they call the API, which takes the same turns. Live pages send an event one after the other, not
// all at once.
func TestAttackPagesTakeTurns(t *testing.T) {
	turns := &oneTurn{T: t, free: make(chan struct{}, 1)}
	var live atomic.Int64
	c := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Has("watch"):
			fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"},"message":"hello"}}`+"\n")
			live.Add(1)
		case r.URL.Path == whoAmIPath:
			fmt.Fprint(w, `{"metadata":{"name":"ann"}}`)
		default:
			turns.free <- struct{}{} // waits for ever if the page holds it
			fmt.Fprint(w, `{"kind":"Table"}`)
			<-turns.free
		}
	}), Options{Turn: turns.of})
	var pages sync.WaitGroup
	ask := func(path, has string) {
		pages.Go(func() {
			r, w := httptest.NewRequest(http.MethodGet, Root+path, nil), httptest.NewRecorder()
			r.Header.Set("Authorization", "Bearer ann")
			if c.ServeHTTP(w, r); !strings.Contains(w.Body.String(), has) {
				t.Errorf("%s: %d %.300s", path, w.Code, w.Body)
			}
		})
	}
	ask("raw?digest=sha256:ab", "Table")
	ask("images", "Images")
	pages.Wait()
	if had := turns.had.Load(); had < 3 {
		t.Errorf("two pages were made in %d turns", had)
	}
	for range 20 {
		ask(livePath+"?after=0", "hello")
	}
	pages.Wait()
	if live.Load() != 20 || len(turns.free) != 0 {
		t.Errorf("%d live pages, %d turns held", live.Load(), len(turns.free))
	}
}
