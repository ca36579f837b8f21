// Package push has the types by which rooms pass on pushes: an [Event] from a receiver of webhooks
// to a queue, and a [Job] from the queue to the worker that imports.
//
// The package is a leaf: it holds no queue and asks no registry, so that the rooms that do need not
// know each other.
package push

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Action is the kind of an Event.
type Action string

const (
	// Pushed: a manifest was pushed or a tag was moved.
	Pushed Action = "push"
	// Deleted: a manifest, a tag or a whole repository was deleted.
	Deleted Action = "delete"
	// Runs: a pod uses the reference. The registry has not changed; the image must be there.
	Runs Action = "run"
	// Follows: a tag of an image stream follows the reference, and wants it imported.
	Follows Action = "follow"
	// Notifies: a notification is to be sent; see [NewNotification].
	Notifies Action = "tell"
)

// Event is one thing that a registry says happened. It is trusted to name something to ask the
// registry about, and no further. Its JSON is the form in which a queue stores it. That leaves out
// the source, and what only the receiver reads, so that equal events of several deliveries have
// equal forms.
type Event struct {
	// Source is where the event comes from. It is not stored with each event of a job.
	Source Source `json:"-"`
	// ID is the sender's name for the delivery, the same when it is sent again. It
	// is empty when the sender has none.
	ID     string `json:"-"`
	Action Action `json:"action"`
	// Host is the registry, Repository the path within it, both canonical (package
	// reference).
	Host       string `json:"host"`
	Repository string `json:"repository"`
	// Pushed has a Tag or a Digest or both, Runs and Follows exactly one. Deleted without either is
	// about the whole repository.
	Tag    string `json:"tag,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Actor is who did it, by the sender's word; nobody checks that. It is a line of at most
	// MaxActor bytes, and empty if the sender does not say.
	Actor string `json:"actor,omitempty"`
	// MediaType is the manifest's, empty if the sender does not say.
	MediaType string `json:"-"`
	// Payload is what Notifies sends: JSON.
	Payload string `json:"payload,omitempty"`
	// Trace is the span that the event came in, as W3C Trace Context's traceparent; empty if that
	// is not recorded. It is stored with the event that makes a job, and not with those that join
	// one.
	Trace string `json:"trace,omitempty"`
}

// traceparent is version 00 of W3C Trace Context's header.
var traceparent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// MaxActor bounds Event.Actor, in bytes.
const MaxActor = 128

// Kind is what puts events into a queue.
type Kind int

const (
	// Webhook: a receiver of webhooks, which has the Name.
	Webhook Kind = iota
	// Cluster: pods of the cluster of this Name use the reference.
	Cluster
	// Streams: tags of image streams follow the reference.
	Streams
	// Registry: the registry that has this server for its image API has stored a push.
	Registry
	// People: somebody asks to have the reference imported, now or again. The Actor is that person.
	People
	// Notification: the receiver of notifications of this Name is to be notified.
	Notification
)

// Source is where events come from: a Kind and, of those that there are several of, a Name. The
// jobs of a Source share its quota and take turns with those of others.
type Source struct {
	Kind Kind
	Name string
}

// OfWebhook is the Source of what a receiver of webhooks hears.
func OfWebhook(name string) Source { return Source{Webhook, name} }

// OfCluster is the Source of references that the pods of a cluster use.
func OfCluster(name string) Source { return Source{Cluster, name} }

// OfNotifications is the Source of notifications to the receiver of this name.
func OfNotifications(name string) Source { return Source{Notification, name} }

// The Sources that there is one of.
var (
	OfStreams  = Source{Kind: Streams}
	OfRegistry = Source{Kind: Registry}
	OfPeople   = Source{Kind: People}
)

// The texts of Sources, in which they are stored and shown. A receiver of webhooks has no slash in
// its name.
const (
	streamsText   = "image/streams"
	registryText  = "image/registry"
	peopleText    = "image/asked"
	clusterPrefix = "cluster/"
	notifyPrefix  = "notify/"
)

// String returns the text of the Source.
func (s Source) String() string {
	switch s.Kind {
	case Cluster:
		return clusterPrefix + s.Name
	case Streams:
		return streamsText
	case Registry:
		return registryText
	case People:
		return peopleText
	case Notification:
		return notifyPrefix + s.Name
	}
	return s.Name
}

// ParseSource returns the Source that has a text.
func ParseSource(text string) Source {
	switch text {
	case streamsText:
		return OfStreams
	case registryText:
		return OfRegistry
	case peopleText:
		return OfPeople
	}
	if name, ok := strings.CutPrefix(text, clusterPrefix); ok {
		return OfCluster(name)
	}
	if name, ok := strings.CutPrefix(text, notifyPrefix); ok {
		return OfNotifications(name)
	}
	return OfWebhook(text)
}

// MarshalText implements encoding.TextMarshaler.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Source) UnmarshalText(text []byte) error {
	*s = ParseSource(string(text))
	return nil
}

// notifyHost begins the Host of notifications, which no registry can have: each receiver is away by
// itself.
const notifyHost = "notify:"

// NotifiedHost returns whom the jobs with a Host notify; ok is false for a registry.
func NotifiedHost(host string) (name string, ok bool) { return strings.CutPrefix(host, notifyHost) }

// NewNotification is an event that notifies somebody of a subject, once for each ID. The payload is
// JSON.
func NewNotification(name, kind, subject, id, payload string) Event {
	return Event{Source: OfNotifications(name), ID: id, Action: Notifies, Host: notifyHost + name, Repository: kind + "/" + printable.Line(subject, maxSubject), Digest: id, Payload: payload}
}

// maxSubject bounds the subject in the key of a notification, in bytes.
const maxSubject = 700

// Reference returns the reference that the event is about, with its tag and its digest.
func (e Event) Reference() reference.Reference {
	return reference.Reference{Host: e.Host, Repository: e.Repository, Tag: e.Tag, Digest: e.Digest}
}

// Key names what the event is about: host/repository:tag, else host/repository@digest, else
// host/repository. Events with one key are one Job. Every notification has its own key.
func (e Event) Key() string {
	if e.Action == Notifies {
		return e.Host + "/" + e.Repository + "#" + e.Digest
	}
	ref := e.Reference()
	if ref.Tag != "" {
		ref.Digest = ""
	}
	return ref.String()
}

// Encode returns the stored form of the event.
func (e Event) Encode() []byte {
	b, _ := json.Marshal(e) // strings always marshal
	return b
}

// Decode reads and checks the output of Encode: a queue may be old. Names come back in canonical
// form, also those that were stored when Docker Hub was index.docker.io.
func Decode(b []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(b, &e); err != nil {
		return Event{}, fmt.Errorf("stored event: %w", err)
	}
	if e.Action == Notifies {
		if _, ok := NotifiedHost(e.Host); !ok || !json.Valid([]byte(e.Payload)) {
			return Event{}, fmt.Errorf("stored event: %s tells nobody, or not by JSON", printable.Line(e.Host, maxSubject))
		}
		return Event{Action: Notifies, Host: e.Host, Repository: e.Repository, Digest: e.Digest, Payload: e.Payload}, nil
	}
	if e.Action != Pushed && e.Action != Deleted && e.Action != Runs && e.Action != Follows {
		return Event{}, fmt.Errorf("stored event: action %q is not one of %s, %s, %s and %s", e.Action, Pushed, Deleted, Runs, Follows)
	}
	if e.Action != Deleted && e.Tag == "" && e.Digest == "" {
		return Event{}, fmt.Errorf("stored event: %s of %s has neither tag nor digest", e.Action, e.Key())
	}
	host, err := reference.ParseHost(e.Host)
	if err != nil {
		return Event{}, fmt.Errorf("stored event: %w", err)
	}
	e.Host = host
	ref, err := reference.Parse(e.Reference().String())
	if err != nil {
		return Event{}, fmt.Errorf("stored event: %w", err)
	}
	if !traceparent.MatchString(e.Trace) {
		e.Trace = "" // a job is done all the same
	}
	return Event{Action: e.Action, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest, Actor: printable.Line(e.Actor, MaxActor), Trace: e.Trace}, nil
}

// State is the state of a job.
type State string

const (
	// Waiting: to be done at Job.Due or later.
	Waiting State = "waiting"
	// Leased: a worker does it; it is due again at Job.Due unless the worker renews the lease.
	Leased State = "leased"
	// Dead: given up at Job.Due.
	Dead State = "dead"
)

// Job is the events with one Key that come from one Source, in a queue. Its JSON is what
// administrators see.
type Job struct {
	ID     int64  `json:"id"`
	Key    string `json:"key"`
	Source Source `json:"receiver"`
	State  State  `json:"state"`
	// Due means what State says. Enqueued is when the first event came, and Latest when the last
	// did.
	Due      time.Time `json:"due"`
	Enqueued time.Time `json:"enqueued"`
	Latest   time.Time `json:"-"`
	// NextTry is when a waiting job is tried, as far as is known: at Due, or when its registry may be
	// asked again. It is not stored.
	NextTry *time.Time `json:"nextTry,omitempty"`
	// Attempts counts the leases since the job came or was retried; the first
	// attempt is 1.
	Attempts int `json:"attempts"`
	// Error is why the last attempt failed; it may be cut. Unread is [Failure.Unread].
	Error  string `json:"error,omitempty"`
	Unread bool   `json:"-"`
	// Events are those of a leased job, in order of arrival: 1 to 256, each once. Their Source,
	// ID and MediaType are empty.
	Events []Event `json:"-"`
	// Lease counts the leases ever: it tells the holder of one from the holders of earlier ones.
	Lease int64 `json:"-"`
}

// Host is the registry of a job, or what a notification has in its place.
func (j *Job) Host() string {
	host, _, _ := strings.Cut(j.Key, "/")
	return host
}

// Failure says why an attempt failed and what becomes of the job.
type Failure struct {
	// Error is for people; it is safe to show.
	Error string
	// Unread says that it failed because the registry, or what this server keeps, could not be
	// read: nothing is known of what there is to import. Otherwise it failed for what is there, or
	// is not.
	Unread bool
	// Permanent says that trying again cannot help: the job is dead at once.
	Permanent bool
	// After is the least time to wait, 0 when that is not known.
	After time.Duration
}

// Depth counts the jobs of one Source.
type Depth struct {
	Waiting, Leased, Dead int64
	// Oldest is when the oldest job that is not dead came; zero when there is none.
	Oldest time.Time
}

// Room returns for how many more jobs of a host there is room. If there is none, again is when that
// may change by itself; it is zero when only the end of a job changes it.
type Room = func(host string) (n int, again time.Time)

// ErrNoSuchJob says that no job has that ID, or that the job is leased and cannot be touched.
var ErrNoSuchJob = errors.New("there is no such job, or it is running now")
