// Package relay passes on the events of a watch.
package relay

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// watcher implements watch.Interface.
type watcher struct {
	watch.Interface
	events chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

// New returns a watch that passes on the events of w after change has changed them. When w has
// ended or the returned watch was stopped, it calls ended, and change no more. Unlike watch.Filter,
// it leaves no goroutine behind if its reader stops it without reading the rest.
func New(w watch.Interface, change func(watch.Event) watch.Event, ended func()) watch.Interface {
	r := &watcher{Interface: w, events: make(chan watch.Event), stop: make(chan struct{})}
	go func() {
		defer close(r.events)
		defer ended()
		for event := range w.ResultChan() {
			select {
			case r.events <- change(event):
			case <-r.stop:
				return
			}
		}
	}()
	return r
}

// ResultChan is part of watch.Interface.
func (r *watcher) ResultChan() <-chan watch.Event { return r.events }

// Stop is part of watch.Interface.
func (r *watcher) Stop() {
	r.once.Do(func() { close(r.stop) })
	r.Interface.Stop()
}
