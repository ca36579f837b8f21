// Package job has the types by which rooms pass on jobs: a queue keeps them, a worker does them,
// and administrators look at them. It is a leaf: it holds no queue and knows no work.
package job

import (
	"encoding"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Source is where events come from, or whom they are for. The jobs of a Source share its quota and
// take turns with those of others. Its text is the form in which it is stored and shown.
type Source interface {
	comparable
	fmt.Stringer
	encoding.TextMarshaler
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

// Job is the events E with one Key that have one Source S, in a queue. Its JSON is what
// administrators see.
type Job[S Source, E any] struct {
	ID int64 `json:"id"`
	// Key names what the job is about. Up to its first slash it is the Host.
	Key    string `json:"key"`
	Source S      `json:"receiver"`
	State  State  `json:"state"`
	// Due means what State says. Enqueued is when the first event came, and Latest when the last
	// did.
	Due      time.Time `json:"due"`
	Enqueued time.Time `json:"enqueued"`
	Latest   time.Time `json:"-"`
	// NextTry is when a waiting job is tried, as far as is known: at Due, or when its host may be
	// asked again. It is not stored.
	NextTry *time.Time `json:"nextTry,omitempty"`
	// Attempts counts the leases since the job came or was retried; the first
	// attempt is 1.
	Attempts int `json:"attempts"`
	// Error is why the last attempt failed; it may be cut. Unread is [Failure.Unread]. Failed is when
	// it failed; zero if none has, or that was not kept.
	Error  string    `json:"error,omitempty"`
	Unread bool      `json:"-"`
	Failed time.Time `json:"-"`
	// Events are those of a leased job, in order of arrival: 1 to 256, each once. What a queue does
	// not store with each event is empty.
	Events []E `json:"-"`
	// Lease counts the leases ever: it tells the holder of one from the holders of earlier ones.
	Lease int64 `json:"-"`
}

// Host is whom the job has to do with: a registry, or a receiver of notifications.
func (j *Job[S, E]) Host() string {
	host, _, _ := strings.Cut(j.Key, "/")
	return host
}

// Text is the Source of jobs of every kind, as they are shown.
type Text string

// String returns the text.
func (t Text) String() string { return string(t) }

// MarshalText implements encoding.TextMarshaler.
func (t Text) MarshalText() ([]byte, error) { return []byte(t), nil }

// Shown is a job of any kind, as administrators see it.
type Shown = Job[Text, struct{}]

// Shown returns the job without its events.
func (j *Job[S, E]) Shown() *Shown {
	return &Shown{
		ID: j.ID, Key: j.Key, Source: Text(j.Source.String()), State: j.State, Due: j.Due, Enqueued: j.Enqueued, Latest: j.Latest,
		NextTry: j.NextTry, Attempts: j.Attempts, Error: j.Error, Unread: j.Unread, Lease: j.Lease,
	}
}

// FirstNotification is the lowest ID of a notification. Pushes have lower IDs, so an ID alone names
// a job.
const FirstNotification = 1_000_000_000_000

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

// Words are what the log says about the jobs of a queue.
type Words struct {
	// Host is what a host is.
	Host string
	// Away and Back say that a host does not answer, or answers again.
	Away, Back string
	// Done and Failed say how a job ended.
	Done, Failed string
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
