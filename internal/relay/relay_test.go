package relay_test

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/internal/relay"
)

// TestEventsAreChanged: the watch passes on changed events in order, and ends when the inner watch
// ends.
func TestEventsAreChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, ended := watch.NewFake(), false
		w := relay.New(below, func(e watch.Event) watch.Event {
			e.Type = "changed " + e.Type
			return e
		}, func() { ended = true })
		go func() {
			below.Add(&metav1.Status{})
			below.Delete(&metav1.Status{})
			below.Stop()
		}()
		var got []watch.EventType
		for e := range w.ResultChan() {
			got = append(got, e.Type)
		}
		if len(got) != 2 || got[0] != "changed ADDED" || got[1] != "changed DELETED" || !ended {
			t.Errorf("got %q, ended %v", got, ended)
		}
	})
}

// TestStopWithoutReading: a reader that stops a watch need not read the rest, and may stop it
// twice. No goroutine is left, because otherwise the bubble would not end.
func TestStopWithoutReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, ended := watch.NewFakeWithChanSize(2, false), false
		w := relay.New(below, func(e watch.Event) watch.Event { return e }, func() { ended = true })
		below.Add(&metav1.Status{})
		below.Add(&metav1.Status{})
		synctest.Wait()
		w.Stop()
		w.Stop()
		synctest.Wait()
		if !ended {
			t.Error("the watch continues")
		}
	})
}
