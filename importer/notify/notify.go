package notify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/notification"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Kind is the kind of a change. The type of a CloudEvent is typePrefix and the kind.
type Kind = notification.Kind

// To, Notification and Job are what queues and this package pass on.
type (
	To           = notification.To
	Notification = notification.Notification
	Job          = notification.Job
)

// The kinds of events.
const (
	Imported Kind = "image.imported" // an image was pushed, or found, and is stored
	Moved    Kind = "tag.moved"      // a tag leads to another image than before
	// a tag that must not move leads to another image than it must
	Overwritten Kind = "tag.overwritten"
	Verdict     Kind = "verdict.turned" // the verdict on an image changed in one place
	Gone        Kind = "reference.gone" // a registry no longer has a tag or a digest
	Drift       Kind = "pods.drifted"   // pods run something else than a tag that they name leads to
	Missed      Kind = "changes.missed" // changes of a time are not known; sent to every receiver
)

// Kinds are those that a receiver may choose.
var Kinds = []Kind{Imported, Moved, Overwritten, Verdict, Gone, Drift}

const typePrefix = "dev.tidewaiter."

// Event is something that happened.
type Event struct {
	Kind Kind
	// ID is the same when the same event is sent again.
	ID   string
	Time time.Time
	// Sequence orders the events of a server, as far as it is known; 0 if not.
	Sequence int64
	// Subject is what it is about: a reference.
	Subject string
	// In are the repositories of the subject.
	In   []reference.Reference
	Data Data
}

// Data are the details of an event; docs/reference/notifications.md has them as a table. Fields
// that an event does not have are left out.
type Data struct {
	Message        string   `json:"message"`
	Reference      string   `json:"reference,omitempty"`
	References     []string `json:"references,omitempty"`
	Image          string   `json:"image,omitempty"`
	Before         string   `json:"before,omitempty"`
	By             string   `json:"by,omitempty"`
	Verified       string   `json:"verified,omitempty"`
	VerifiedBefore string   `json:"verifiedBefore,omitempty"`
	Reason         string   `json:"reason,omitempty"`
	Cause          string   `json:"cause,omitempty"`
	Policy         string   `json:"policy,omitempty"`
	Namespace      string   `json:"namespace,omitempty"`
	Signers        []string `json:"signers,omitempty"`
	Pods           *int     `json:"pods,omitempty"`
	PodsUnknown    bool     `json:"podsUnknown,omitempty"`
	From           int64    `json:"from,omitempty"`
	To             int64    `json:"to,omitempty"`
}

// Bounds of Data.
const (
	maxNamed  = 8    // entries of a list
	maxText   = 700  // bytes of a text; a reference has fewer
	maxStored = 8000 // bytes of an event as the queue stores it
)

// bounded returns the data with texts of at most limit bytes.
func (d Data) bounded(limit int) Data {
	for _, text := range []*string{&d.Message, &d.Reference, &d.Image, &d.Before, &d.By, &d.Policy, &d.Namespace, &d.Reason} {
		*text = printable.Line(*text, limit)
	}
	for _, list := range []*[]string{&d.References, &d.Signers} {
		var cut []string
		for _, text := range (*list)[:min(len(*list), maxNamed)] {
			cut = append(cut, printable.Line(text, limit))
		}
		*list = cut
	}
	return d
}

// cloudEvent is an event in the structured mode of CloudEvents 1.0, with the extension sequence.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	Sequence        string    `json:"sequence,omitempty"`
	DataContentType string    `json:"datacontenttype"`
	Data            Data      `json:"data"`
}

// Options of a Notifier.
type Options struct {
	// Source is a URI of the server, in each event.
	Source string
	// Networks are not public, and may be led into, until Replace; see package guard. A receiver's
	// own host may be anywhere but at a metadata service.
	Networks guard.Networks
	// UserAgent is sent with each request.
	UserAgent string
	// Clock is for tests; nil is the real one.
	Clock clock.PassiveClock
}

// Notifier knows which receivers get which events, and sends them. It is safe for concurrent use.
type Notifier struct {
	Options
	byName atomic.Pointer[map[string]*target]
}

// New checks the receivers; there may be none.
func New(o Options, receivers []Receiver) (*Notifier, error) {
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	n := &Notifier{Options: o}
	return n, n.Replace(receivers, o.Networks)
}

// Replace replaces the receivers. If one of them has a mistake, it changes nothing and returns an
// error with its [index].
func (n *Notifier) Replace(receivers []Receiver, networks guard.Networks) error {
	if len(receivers) > MaxReceivers {
		return fmt.Errorf("there are %d receivers, at most %d are allowed", len(receivers), MaxReceivers)
	}
	before, all := n.targets(), make(map[string]*target, len(receivers))
	for i, r := range receivers {
		t, err := newTarget(r, networks, before[r.Name], n.Clock.Now)
		if err == nil && all[r.Name] != nil {
			err = fmt.Errorf("there are two with the name %s", r.Name)
		}
		if err != nil {
			return &ReceiverError{Index: i, err: err}
		}
		all[r.Name] = t
	}
	n.byName.Store(&all)
	for _, t := range before {
		t.client.CloseIdleConnections()
	}
	return nil
}

// ReceiverError is the mistake of one of several receivers.
type ReceiverError struct {
	Index int
	err   error
}

func (e *ReceiverError) Error() string { return e.err.Error() }

// Unwrap returns the mistake.
func (e *ReceiverError) Unwrap() error { return e.err }

func (n *Notifier) targets() map[string]*target {
	if all := n.byName.Load(); all != nil {
		return *all
	}
	return nil
}

// Receivers returns the receivers.
func (n *Notifier) Receivers() (all []To) {
	for name := range n.targets() {
		all = append(all, To(name))
	}
	return all
}

// Jobs returns one job for each receiver that wants an event; the caller stores them in the queue.
func (n *Notifier) Jobs(e Event) (all []Notification) {
	payload := ""
	e.Subject = printable.Line(strings.Map(ofReference, e.Subject), maxText)
	for name, t := range n.targets() {
		if !t.wants(&e) {
			continue
		}
		job := Notification{To: To(name), ID: e.ID, Kind: e.Kind, Subject: e.Subject, Payload: payload}
		for limit := maxText; payload == "" || len(job.Encode()) > maxStored; limit = limit/2 + 1 {
			// what is escaped takes seven times as much
			payload = n.encode(e, limit)
			job.Payload = payload
		}
		all = append(all, job)
	}
	return all
}

// ofReference returns a character that a reference may have, which JSON need not escape.
func ofReference(r rune) rune {
	if r <= ' ' || r > '~' || strings.ContainsRune("\"\\<>&", r) {
		return '_'
	}
	return r
}

func (n *Notifier) encode(e Event, limit int) string {
	c := cloudEvent{
		SpecVersion: "1.0", ID: e.ID, Source: n.Source, Type: typePrefix + string(e.Kind), Subject: e.Subject,
		Time: e.Time.UTC().Truncate(time.Millisecond), DataContentType: "application/json", Data: e.Data.bounded(limit),
	}
	if e.Sequence != 0 {
		c.Sequence = fmt.Sprintf("%020d", e.Sequence) // ordered as text
	}
	b, _ := json.Marshal(c) // it has only texts and numbers
	return string(b)
}
