// Package queue turns what registries tell into Images: a Worker takes jobs from a
// Queue, asks the registry what is true of them, and has an importer do the rest.
// It does not know how a Queue keeps its jobs.
package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Hint is what a registry said happened. It is believed as far as it names
// something to ask the registry about, and no further.
type Hint struct {
	// Action is Push or Delete.
	Action string `json:"action"`
	// Host is the registry, Repository the path within it, both canonical.
	Host       string `json:"host"`
	Repository string `json:"repository"`
	// Tag and Digest: a push has at least one; a delete without either is of the
	// whole repository.
	Tag    string `json:"tag,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// Actions of a Hint.
const (
	Push   = "push"
	Delete = "delete"
)

// Key names what the hint is about. Hints of one key are one Job.
func (h Hint) Key() string {
	ref := h.repository()
	if ref.Tag = h.Tag; ref.Tag == "" {
		ref.Digest = h.Digest
	}
	return ref.String()
}

func (h Hint) repository() reference.Reference {
	return reference.Reference{Host: h.Host, Repository: h.Repository}
}

// Encode is the form of a Hint in a queue. Equal hints have equal forms.
func (h Hint) Encode() []byte {
	b, _ := json.Marshal(h) // strings always marshal
	return b
}

// DecodeHint reads Encode's form, and checks it: a queue may be old. Names come back
// in canonical form, also those that were stored when Docker Hub was index.docker.io.
func DecodeHint(b []byte) (Hint, error) {
	var h Hint
	if err := json.Unmarshal(b, &h); err != nil {
		return Hint{}, fmt.Errorf("hint: %w", err)
	}
	if h.Action != Push && h.Action != Delete {
		return Hint{}, fmt.Errorf("hint: action %q is neither %s nor %s", h.Action, Push, Delete)
	}
	if h.Action == Push && h.Tag == "" && h.Digest == "" {
		return Hint{}, fmt.Errorf("hint: a push of %s has neither tag nor digest", h.repository())
	}
	host, err := reference.ParseHost(h.Host)
	if err != nil {
		return Hint{}, fmt.Errorf("hint: %w", err)
	}
	ref, err := reference.Parse(reference.Reference{Host: host, Repository: h.Repository, Tag: h.Tag, Digest: h.Digest}.String())
	if err != nil {
		return Hint{}, fmt.Errorf("hint: %w", err)
	}
	return Hint{Action: h.Action, Host: ref.Host, Repository: ref.Repository, Tag: ref.Tag, Digest: ref.Digest}, nil
}

// Job is a lease of hints with the same Key.
type Job struct {
	// ID names the job in logs.
	ID int64
	// Receiver is who was told.
	Receiver string
	// Received is when the first hint came, Latest when the last did.
	Received, Latest time.Time
	// Attempt counts from 1.
	Attempt int
	// Hints in order of arrival, at least one.
	Hints []Hint
	// Lease tells the queue which of the job's leases this is.
	Lease int64
}

// Host is the registry that all the hints are about.
func (j Job) Host() string { return j.Hints[0].Host }

// Queue keeps jobs until they are done, across restarts.
type Queue interface {
	// Claim waits for jobs and leases up to n of them, for so long. room says how many
	// of a registry's jobs there is room for, and where there is none when to ask again;
	// a zero time is after the next end of a job. Registries take turns.
	Claim(ctx context.Context, n int, lease time.Duration, room func(host string) (n int, again time.Time)) ([]Job, error)
	// Renew extends the lease of a job. It and the methods below fail when the
	// lease has ended.
	Renew(ctx context.Context, j Job, lease time.Duration) error
	// Done removes the job.
	Done(ctx context.Context, j Job) error
	// Fail has the job tried again later, or never.
	Fail(ctx context.Context, j Job, f Failure) error
	// Release gives the job back as if it had not been claimed.
	Release(ctx context.Context, j Job) error
	// Depth counts the jobs by receiver.
	Depth(ctx context.Context) (map[string]Depth, error)
}

// Failure says why an attempt failed and what is to come of the job.
type Failure struct {
	// Error is for people; it is safe to show.
	Error string
	// Permanent says that trying again cannot help.
	Permanent bool
	// After is the least time to wait, 0 when that is not known.
	After time.Duration
}

// Depth are the jobs of one receiver.
type Depth struct {
	Waiting, Leased, Dead int64
	// Oldest is when the oldest that is not dead came; zero when there is none.
	Oldest time.Time
}

// Finder finds Images by where they are from.
type Finder interface {
	// FindImages calls visit with every Image that is known (see annotation.Known) by
	// the reference, or by one in the repository if it has neither tag nor digest,
	// until visit fails.
	FindImages(ctx context.Context, ref reference.Reference, visit func(*imagev1.Image) error) error
}

// Lister lists Images in pages.
type Lister interface {
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// Notice is something to tell the people who look at an Image.
type Notice struct {
	// Reason is one of the Notice… constants.
	Reason string
	// Warning is set when somebody may have to do something.
	Warning bool
	// Image is the name of the Image, a digest; empty when it is not known which.
	Image string
	// Reference is what the registry spoke of.
	Reference string
	// Message is one sentence.
	Message string
}

// Reasons of a Notice, as they are written in a Kubernetes Event.
const (
	NoticePushReceived     = "PushReceived"
	NoticeImported         = "Imported"
	NoticeImportFailed     = "ImportFailed"
	NoticeGoneFromRegistry = "GoneFromRegistry"
)

// Notifier passes Notices on, usually as Kubernetes Events. It must not wait
// long: it is called while a job is done.
type Notifier interface {
	Notify(ctx context.Context, n Notice)
}
