// Package queue turns notifications of registries into Images: a Worker takes jobs from a Queue,
// asks the registry for the present state, and calls an importer. It does not know how a Queue
// keeps its jobs.
package queue

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Queue keeps jobs until they are done, across restarts.
type Queue = runner.Queue[push.Source, push.Event]

// Finder finds Images by their references.
type Finder interface {
	// FindImages calls visit with every Image that is known (see annotation.Known) by the
	// reference, or, if that has neither tag nor digest, by one in its repository, until visit
	// fails.
	FindImages(ctx context.Context, ref reference.Reference, visit func(*imagev1.Image) error) error
}

// Pods know the pods whose images are imported.
type Pods interface {
	// Keychains returns the credentials with which pods of a cluster that use ref now pull it: one
	// for each service account, and at most a few. They are read from the cluster each time. unread
	// is why others could not be read, nil if all could. err is why the cluster did not answer; if
	// no other credentials do, the job is then tried again.
	Keychains(ctx context.Context, cluster string, ref reference.Reference) (all []authn.Keychain, unread, err error)
}

// Streams know the tags of image streams that want imported what they follow.
type Streams interface {
	// Imported passes the result of an import to the streams; failed is nil or why it failed.
	Imported(ctx context.Context, ref reference.Reference, failed error) error
	// Scheduled calls use with each reference that every sweep must import, until use fails. A
	// reference may come several times.
	Scheduled(ctx context.Context, use func(ref reference.Reference) error) error
}

// Owners know which of several Workers asks a registry.
type Owners interface {
	// Owns reports whether this one does.
	Owns(host string) bool
	// OnChange has f called when Owns may answer otherwise than before. f returns at once.
	OnChange(f func())
}

// Running knows what pods run.
type Running interface {
	// EachRunning calls use with each image that a pod runs and whose repository and digest are
	// known, until use fails. An image may come several times. cluster is the pod's if its pull
	// secrets may be used, otherwise "".
	EachRunning(ctx context.Context, use func(cluster string, image reference.Reference) error) error
	// PodsRunning counts the pods that are known to run the image of a digest.
	PodsRunning(digest string) int
}

// Lister lists Images in pages.
type Lister interface {
	List(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error)
}

// Notice is a message for users of an Image.
type Notice struct {
	// Reason is one of the Notice… constants.
	Reason string
	// Warning is set when an administrator may have to act.
	Warning bool
	// Image is the name of the Image, a digest; empty when it is not known which.
	Image string
	// Reference is the one that the registry reported.
	Reference string
	// Message is one sentence.
	Message string
}

// Reasons of a Notice, as they are written in a Kubernetes Event.
const (
	NoticePushReceived     = "PushReceived"
	NoticeImportAsked      = "ImportAsked"
	NoticeImported         = "Imported"
	NoticeImportFailed     = "ImportFailed"
	NoticeGoneFromRegistry = "GoneFromRegistry"
	NoticeRegistryEmptied  = "RegistryEmptied" // Reference is the registry
)

// Notifier passes Notices on, usually as Kubernetes Events. It must not wait
// long: it is called while a job is done.
type Notifier interface {
	Notify(ctx context.Context, n Notice)
}

func (w *Worker) notify(ctx context.Context, n Notice) {
	if s, ok := ctx.Value(summaryKey{}).(*summary); ok && s.take(n) {
		return
	}
	if w.Notifier != nil {
		w.Notifier.Notify(ctx, n)
	}
}
