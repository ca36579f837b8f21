package spool

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/notification"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// Pushes is the queue of pushes, and of whatever else is imported.
type Pushes struct {
	*Queue[push.Source, push.Event]
	// Outbox is the queue of notifications in the same database.
	Outbox *Outbox
}

// Outbox is the queue of notifications.
type Outbox = Queue[notification.To, notification.Notification]

// kind is what a Queue knows about its events.
type kind[S job.Source, E any] interface {
	// keys returns the prefixes of the queue's keys, and firstID the lowest ID of its jobs.
	keys() *keys
	firstID() int64
	// item returns the stored form of an event. traceparent is the trace in which it came, "" if
	// none is recorded.
	item(e E, traceparent string) item[S]
	// decode reads a stored event.
	decode(stored []byte) (E, error)
	// isStray reports whether jobs with this source are of another kind: an earlier release, which
	// had one queue for both, stored them.
	isStray(source S) bool
	words() words
}

// words are messages about jobs of a kind.
type words struct{ dead, dropped, do string }

const (
	// Prefix begins the keys of the queue of pushes.
	Prefix = "/tidewaiter.dev/spool/"
	// maxSeenNotifications is Options.MaxSeen of notifications, if that is not less.
	maxSeenNotifications = 50_000
)

var pushKeys, outboxKeys = keysBelow(Prefix), keysBelow("/tidewaiter.dev/outbox/")

// pushKind is the kind of pushes.
type pushKind struct{}

func (pushKind) keys() *keys    { return &pushKeys }
func (pushKind) firstID() int64 { return 1 }

func (pushKind) item(e push.Event, traceparent string) item[push.Source] {
	in := cmp.Or(e.Trace, traceparent)
	e.Trace = ""
	i := item[push.Source]{source: e.Source, id: e.ID, key: e.Key(), stored: e.Encode()}
	i.traced = i.stored
	if e.Trace = in; in != "" {
		i.traced = e.Encode()
	}
	return i
}

func (pushKind) decode(stored []byte) (push.Event, error) { return push.Decode(stored) }

// No webhook has a slash in its name.
func (pushKind) isStray(s push.Source) bool {
	return s.Kind == push.Webhook && strings.HasPrefix(s.Name, notification.ToPrefix)
}

func (pushKind) words() words {
	return words{
		dead:    "a push was given up: its job is dead",
		dropped: "a receiver exceeded its quota of waiting pushes; dropping its oldest",
		do:      "if these pushes are not yours, give the receiver a new secret; sweeps find dropped pushes that were yours, and images that pods use are checked again",
	}
}

// notificationKind is the kind of notifications.
type notificationKind struct{}

func (notificationKind) keys() *keys    { return &outboxKeys }
func (notificationKind) firstID() int64 { return job.FirstNotification }

func (notificationKind) item(n notification.Notification, _ string) item[notification.To] {
	stored := n.Encode()
	return item[notification.To]{source: n.To, id: n.ID, key: n.Key(), stored: stored, traced: stored}
}

func (notificationKind) decode(stored []byte) (notification.Notification, error) {
	return notification.Decode(stored)
}

func (notificationKind) isStray(notification.To) bool { return false }

func (notificationKind) words() words {
	return words{
		dead:    "a notification was given up: its job is dead",
		dropped: "a receiver of notifications does not keep up; dropping the oldest that wait",
		do:      "mend the receiver, or send it fewer events (notify in the configuration)",
	}
}

// Open returns the queues of a database, or of all databases that are copies of one store. Each has
// the bounds of Options for itself. Jobs of earlier releases, which kept them in tables, become
// keys. Call it once.
func Open(d *db.DB, opts Options) (*Pushes, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	if opts.Servers == nil {
		opts.Servers = alone(uuid.NewUUID())
	}
	err := adopt(d, opts.MaxSeen)
	if _, ok := errors.AsType[*datafile.UnavailableError](err); ok {
		opts.Logger.Warn("pushes of an earlier release wait until there is room to move them", "err", err, "do", "make room and restart the server")
	} else if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	counter := newDroppedCounter(opts.Registerer)
	notifications := opts
	notifications.MaxSeen = min(opts.MaxSeen, maxSeenNotifications)
	return &Pushes{
		Queue:  newQueue(d, pushKind{}, newDropped[push.Source](opts.Logger, counter, pushKind{}.words()), opts),
		Outbox: newQueue(d, notificationKind{}, newDropped[notification.To](opts.Logger, counter, notificationKind{}.words()), notifications),
	}, nil
}
