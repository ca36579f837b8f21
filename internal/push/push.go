// Package push has the types by which rooms pass on pushes: an [Event] from a receiver of webhooks
// to a queue, and a [Job] from the queue to the worker that imports. It holds no queue and asks no
// registry, so that the rooms that do need not know each other.
package push

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/job"
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
	return OfWebhook(text)
}

// MarshalText implements encoding.TextMarshaler.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Source) UnmarshalText(text []byte) error {
	*s = ParseSource(string(text))
	return nil
}

// Reference returns the reference that the event is about, with its tag and its digest.
func (e Event) Reference() reference.Reference {
	return reference.Reference{Host: e.Host, Repository: e.Repository, Tag: e.Tag, Digest: e.Digest}
}

// Key names what the event is about: host/repository:tag, else host/repository@digest, else
// host/repository. Events with one key are one Job.
func (e Event) Key() string {
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

// Job is the events with one Key that come from one Source, in a queue.
type Job = job.Job[Source, Event]
