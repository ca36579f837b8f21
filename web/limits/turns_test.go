package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAttackTurnsAreShared: lists and work outside of the handler chain share turns, so together
// they leave a processor free. A task that writes to a watch which has a turn, like a live page of
// the console, does not wait for itself. A task whose reader is slow holds no turn.
func TestAttackTurnsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{newTurns(1)}
		o := options()
		o.Turns = turns
		l := WithRequestLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer Begin(r.Context())()
			_, _ = w.Write([]byte("existing"))
		}), o).(*requestLimits)
		of := func(w http.ResponseWriter) *Turn { return turns.Of(t.Context(), w, "ann", "192.0.2.1:1234") }
		end := of(nil).Begin()
		served := make(chan struct{})
		go func() {
			defer close(served)
			servedIn(t.Context(), l, httptest.NewRecorder(), "watch", "ben", "192.0.2.2:1234")
		}()
		synctest.Wait()
		select {
		case <-served:
			t.Error("a watch began beside a task that had the only turn")
		default:
		}
		end()
		<-served

		servedIn(t.Context(), l, writeFunc(func(p []byte) {
			task := of(httptest.NewRecorder())
			defer task.Begin()()
			_, _ = task.Write(p)
		}), "watch", "ann", "192.0.2.1:1234")

		task := of(&timedWriter{takes: 2 * quickWrite, turns: turns.class})
		end = task.Begin()
		if _, err := task.Write([]byte("event")); err != nil || task.ResponseWriter.(*timedWriter).kept[0] {
			t.Errorf("a task whose reader is slow keeps its turn: %v", err)
		}
		if err := task.FlushError(); err != nil {
			t.Error(err)
		}
		end()
		gone, leave := context.WithCancel(t.Context())
		leave()
		defer of(nil).Begin()()
		turns.Of(gone, nil, "ben", "").Begin()()
		time.Sleep(time.Minute)
		if held(turns.class) != 1 {
			t.Errorf("%d turns are held", held(turns.class))
		}
	})
}

// TestAttackBodiesShareTurnsWithLists: a heavy body is decoded in one of the turns of lists.
func TestAttackBodiesShareTurnsWithLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bodyOptions(BodyBound{Bytes: 1 << 20, Values: 1000})
		o.Turns = &Turns{newTurns(1)}
		decoded := 0
		h := WithBodyLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { decoded++ }), o)
		heavy := strings.Repeat(" ", 1<<20)
		end := o.Turns.Of(t.Context(), nil, "ann", "192.0.2.1:1").Begin()
		answers := make(chan int)
		go func() { answers <- sent(t.Context(), h, "ben", "192.0.2.2:1", strings.NewReader(heavy)).Code }()
		synctest.Wait()
		if decoded != 0 {
			t.Error("a heavy body is decoded beside a list")
		}
		if code := sent(t.Context(), h, "eve", "192.0.2.3:1", strings.NewReader(heavy)).Code; code != http.StatusTooManyRequests {
			t.Errorf("a body without a turn: %d", code)
		}
		go func() { answers <- sent(t.Context(), h, "ben", "192.0.2.2:1", strings.NewReader(heavy)).Code }()
		time.Sleep(time.Second)
		end()
		first, second := <-answers, <-answers
		if first+second != http.StatusTooManyRequests+http.StatusOK || decoded != 1 {
			t.Errorf("the bodies got %d and %d; %d are decoded", first, second, decoded)
		}
		time.Sleep(time.Minute)
		nothingKept(t, o.Turns.class)
		nothingKept(t, h.(*bodyLimits).turns)
	})
}

// writeFunc is a response that passes its writes to a function.
type writeFunc func(p []byte)

func (writeFunc) Header() http.Header           { return http.Header{} }
func (writeFunc) WriteHeader(int)               {}
func (f writeFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
