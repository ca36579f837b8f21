// Package notification has the types by which rooms pass on notifications: a [Notification] from
// what makes it to a queue, and a [Job] from the queue to what sends it. It is a leaf.
package notification

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Kind says what happened.
type Kind string

// To is the name of a receiver, to which notifications are sent. The jobs of a receiver share its
// quota.
type To string

// ToPrefix begins the text of each To, which no receiver of webhooks has.
const ToPrefix = "notify/"

// String returns the text in which the receiver is stored and shown.
func (t To) String() string { return ToPrefix + string(t) }

// MarshalText implements encoding.TextMarshaler.
func (t To) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *To) UnmarshalText(text []byte) error {
	name, ok := strings.CutPrefix(string(text), ToPrefix)
	if !ok {
		return fmt.Errorf("%q is no receiver of notifications", text)
	}
	*t = To(name)
	return nil
}

// Job is a notification in a queue.
type Job = job.Job[To, Notification]

// Notification is an event that a receiver is to be sent, once for each ID. Its JSON is the form in
// which a queue stores it.
type Notification struct {
	// To is not stored with each notification of a job.
	To      To     `json:"-"`
	ID      string `json:"id"`
	Kind    Kind   `json:"kind"`
	Subject string `json:"subject"`
	// Payload is what is sent: JSON.
	Payload string `json:"payload"`
}

// Key names the notification. Each has its own, and so a job of its own.
func (n Notification) Key() string {
	return string(n.To) + "/" + string(n.Kind) + "/" + n.Subject + "#" + n.ID
}

// Encode returns the stored form.
func (n Notification) Encode() []byte {
	b, _ := json.Marshal(n) // strings always marshal
	return b
}

// Decode reads and checks the output of Encode: a queue may be old.
func Decode(b []byte) (n Notification, err error) {
	if err := json.Unmarshal(b, &n); err != nil {
		return n, fmt.Errorf("stored notification: %w", err)
	}
	return n, n.check()
}

// DecodeFormer is Decode for the form in which earlier releases stored a notification: that of a
// push.
func DecodeFormer(b []byte) (n Notification, err error) {
	var former struct{ Repository, Digest, Payload string }
	if err := json.Unmarshal(b, &former); err != nil {
		return n, fmt.Errorf("stored notification: %w", err)
	}
	kind, subject, _ := strings.Cut(former.Repository, "/")
	n = Notification{ID: former.Digest, Kind: Kind(kind), Subject: subject, Payload: former.Payload}
	return n, n.check()
}

// maxKey bounds the key in an error, in bytes.
const maxKey = 700

func (n *Notification) check() error {
	if n.ID == "" || !json.Valid([]byte(n.Payload)) {
		return fmt.Errorf("stored notification: %s has no ID, or no JSON to send", printable.Line(n.Key(), maxKey))
	}
	return nil
}
