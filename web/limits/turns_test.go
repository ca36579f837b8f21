package limits

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// Lists and work outside of the handler chain share turns: together they leave a processor free. A
// task within a watch that begins, as a live page of the console is, does not wait for itself, and
// one whose reader takes nothing holds no turn.
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

// writeFunc is a response whose writes are passed on.
type writeFunc func(p []byte)

func (writeFunc) Header() http.Header           { return http.Header{} }
func (writeFunc) WriteHeader(int)               {}
func (f writeFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }
