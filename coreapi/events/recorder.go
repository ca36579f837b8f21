// Package events records Kubernetes Events, at a bounded rate.
package events

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
)

// A recorder sends eventBurst Events of a reason at once and eventsPerSecond after that, whatever
// happens: a sweep over a million images must not cause a million writes. It drops Events beyond
// that. Each reason has its own budget: many pushes must not hide that a verdict has turned.
const (
	eventBurst      = 500
	eventsPerSecond = 20
	// maxReasons is the number of reasons with a budget of their own. Further ones share one.
	maxReasons = 64
)

// flushPatience is how long a flush waits for the next Event to be sent.
const flushPatience = 2 * time.Second

// Recorder records Kubernetes Events with client-go's recorder, which
// aggregates similar ones. [NewRecorder] makes one.
type Recorder struct {
	recorder record.EventRecorder
	rates    rates
	recorded atomic.Int64
	sent     atomic.Int64
	progress chan struct{} // filled when sent grew
}

// NewRecorder returns a recorder of Events in the name of component, sent
// with config until ctx ends. The objects that events are about must be known
// to scheme; events about a cluster-scoped object go to the namespace default.
// identify, if not nil, completes the reference of an event's object before the event is
// sent, in the background: kubectl describe finds the events of an object by its UID.
func NewRecorder(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, component string, identify func(context.Context, *corev1.ObjectReference)) (*Recorder, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("event recorder: %w", err)
	}
	if identify == nil {
		identify = func(context.Context, *corev1.ObjectReference) {}
	}
	r := &Recorder{rates: rates{clock: clock.RealClock{}}, progress: make(chan struct{}, 1)}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{BurstSize: eventBurst}))
	broadcaster.StartRecordingToSink(&eventSink{&typedcorev1.EventSinkImpl{Interface: client.Events("")}, func(about *corev1.ObjectReference) { identify(ctx, about) }, r})
	r.recorder = broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component})
	return r, nil
}

// Event records an event about an object; kind is Normal or Warning. It never
// blocks.
func (r *Recorder) Event(about runtime.Object, kind, reason, message string) {
	if !r.rates.admits(reason) {
		return
	}
	r.recorded.Add(1)
	r.recorder.Event(about, kind, reason, message)
}

// rates bound the Events of each reason.
type rates struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	of    map[string]flowcontrol.PassiveRateLimiter // by reason; "" for further ones
}

// admits reports whether an Event of a reason is recorded.
func (r *rates) admits(reason string) bool {
	r.mu.Lock()
	rate, known := r.of[reason]
	if !known && len(r.of) >= maxReasons {
		reason = ""
		rate, known = r.of[reason]
	}
	if !known {
		if r.of == nil {
			r.of = map[string]flowcontrol.PassiveRateLimiter{}
		}
		rate = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(eventsPerSecond, eventBurst, r.clock)
		r.of[reason] = rate
	}
	r.mu.Unlock()
	return rate.TryAccept()
}

// Flush waits until the recorded events are sent, as long as the server takes events. It
// is for programs that are about to end.
func (r *Recorder) Flush() {
	for r.sent.Load() < r.recorded.Load() {
		select {
		case <-r.progress:
		case <-time.After(flushPatience):
			return
		}
	}
}

// eventSink counts the events that were sent, or never will be.
type eventSink struct {
	record.EventSink
	identify func(*corev1.ObjectReference)
	recorder *Recorder
}

// Create implements record.EventSink.
func (s *eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	defer s.sent()
	s.identify(&event.InvolvedObject)
	return s.EventSink.Create(event)
}

// Patch implements record.EventSink. If the event is no longer there, the recorder
// creates one.
func (s *eventSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	out, err := s.EventSink.Patch(event, data)
	if !apierrors.IsNotFound(err) {
		s.sent()
	}
	return out, err
}

func (s *eventSink) sent() {
	s.recorder.sent.Add(1)
	select {
	case s.recorder.progress <- struct{}{}:
	default: // flush has been woken already
	}
}
