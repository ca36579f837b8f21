// Package imageevents records Events about Images, for servers and imports.
package imageevents

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/events"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Reasons of Events about Images, beside those of queue.Notice.
const (
	reasonSignatureVerified = "SignatureVerified"
	reasonSignatureRejected = "SignatureRejected"
	reasonVerdictUnknown    = "VerdictUnknown"
	reasonOutdated          = "Outdated"
	reasonTagOverwritten    = "TagOverwritten"
	reasonPromoted          = "Promoted"
)

// maxImported is the number of imported references with an Event each. Flush records one Event for
// all others. An Event costs a server nearly as much as an image, and users do not read thousands.
// With an Event for each reference, an import of 300 images took 1.8 times the processor time of
// the server and 1.3 times that of the client.
const maxImported = 20

// Recorder records Kubernetes Events about Images, for servers and imports. Until Start is called
// it drops them: there is no server to send them to.
type Recorder struct {
	recorder atomic.Pointer[events.Recorder]

	mu       sync.Mutex
	imported int // references since Flush
	last     *corev1.ObjectReference
	message  string // about the last of them
}

// Start sends events about the images at config's server to to's server until ctx ends. component
// is their source.
func (r *Recorder) Start(ctx context.Context, config, to *restclient.Config, component string) error {
	images, err := imageclient.New(config)
	if err != nil {
		return err
	}
	recorder, err := events.NewRecorder(ctx, to, scheme.Scheme, component, func(ctx context.Context, about *corev1.ObjectReference) {
		if about.Kind != "Image" || about.UID != "" {
			return
		}
		if image, err := images.Get(ctx, about.Name, metav1.GetOptions{}); err == nil {
			about.UID = image.UID
		}
	})
	if err != nil {
		return err
	}
	r.recorder.Store(recorder)
	return nil
}

// Flush records one Event for the imported references that have none yet, and waits until all
// recorded Events are sent.
func (r *Recorder) Flush() {
	r.mu.Lock()
	more, last, message := r.imported-maxImported, r.last, r.message
	r.imported = 0
	r.mu.Unlock()
	if more > 1 {
		message += ", and " + table.Quantity(more-1, "reference") + " before it that have no event of their own"
	}
	if more > 0 {
		r.Record(last, false, queue.NoticeImported, message)
	}
	if recorder := r.recorder.Load(); recorder != nil {
		recorder.Flush()
	}
}

// Record records an event about an object. It never blocks.
func (r *Recorder) Record(about *corev1.ObjectReference, warning bool, reason, message string) {
	recorder := r.recorder.Load()
	if recorder == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	recorder.Event(about, kind, reason, printable.Text(message))
}

// AboutImage refers to an Image by its name.
func AboutImage(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: imagev1.GroupVersion.String(), Kind: "Image", Name: name}
}

// Notify implements queue.Notifier. An image without a known digest is named by its reference.
func (r *Recorder) Notify(_ context.Context, n queue.Notice) {
	name := cmp.Or(n.Image, n.Reference)
	r.Record(AboutImage(name), n.Warning, n.Reason, n.Message)
}

// Imported records the result of importing a reference, unless nothing has changed. After the first
// maxImported it leaves what was imported to Flush, but not what failed.
func (r *Recorder) Imported(reference string, result *importer.Result, err error) {
	if err == nil && !slices.ContainsFunc(result.Images, func(i importer.ImageResult) bool { return i.Action != importer.Unchanged }) {
		return
	}
	about := AboutImage(reference)
	if result != nil && result.Digest != "" {
		about.Name = result.Digest
		if i := slices.IndexFunc(result.Images, func(i importer.ImageResult) bool { return i.Image.Name == result.Digest }); i >= 0 {
			about.UID = result.Images[i].Image.UID // saves a request for it
		}
	}
	if err != nil {
		r.Record(about, true, queue.NoticeImportFailed, err.Error())
		return
	}
	message := "Imported " + reference
	r.mu.Lock()
	r.imported++
	r.last, r.message = about, message
	more := r.imported > maxImported
	r.mu.Unlock()
	if !more {
		r.Record(about, false, queue.NoticeImported, message)
	}
}

// Turned records which verdicts on an image turned to True, to False or to Unknown: one event for
// all places where it is now trusted, one for all where it is not, and one for all where that is
// not known. So an image in many repositories does not use up the sender's events.
func (r *Recorder) Turned(image *imagev1.Image, turned []signatures.Change) {
	about := AboutImage(image.Name)
	about.UID = image.UID
	for _, e := range eventsOf(turned) {
		r.Record(about, e.warning, e.reason, e.message)
	}
}

// event is the content of an Event.
type event struct {
	warning         bool
	reason, message string
}

// eventsOf returns the events about changed verdicts.
func eventsOf(turned []signatures.Change) (told []event) {
	for _, verified := range []string{verdicts.VerifiedTrue, verdicts.VerifiedFalse, verdicts.VerifiedUnknown} {
		all := slices.DeleteFunc(slices.Clone(turned), func(c signatures.Change) bool { return c.Verified != verified })
		if len(all) == 0 {
			continue
		}
		first := all[0]
		place, namespace, _ := strings.Cut(first.Place, "#")
		if namespace != "" {
			place += ", for the pods of namespace " + namespace
		}
		if len(all) > 1 {
			place += ", and " + table.Quantity(len(all)-1, "other place")
		}
		if verified == verdicts.VerifiedTrue {
			told = append(told, event{false, reasonSignatureVerified, signedBy(first.Signers) + ", in " + place})
			continue
		}
		reason, message := reasonSignatureRejected, "No signature is trusted in "+place
		switch {
		case verified == verdicts.VerifiedUnknown:
			reason, message = reasonVerdictUnknown, "It is not known whether it is verified in "+place
		case first.Reason == answers.ReasonTagMoved:
			message = "It is not verified in " + place
		}
		if first.Message != "" {
			message += ": " + first.Message
		}
		told = append(told, event{true, reason, message})
	}
	return told
}

func signedBy(signers []string) string {
	if len(signers) == 0 {
		return "A signature is trusted"
	}
	return "Signed by " + strings.Join(signers, ", ")
}

// VerdictChanged records a new verdict on an image's signatures if it is True or False. It records
// no event for other verdicts, such as Unsigned and Unknown.
func (r *Recorder) VerdictChanged(image *imagev1.Image, verified string, signers []string) {
	about := AboutImage(image.Name)
	about.UID = image.UID
	switch verified {
	case verdicts.VerifiedTrue:
		r.Record(about, false, reasonSignatureVerified, signedBy(signers))
	case verdicts.VerifiedFalse:
		message := "No signature is trusted"
		if why := rejection(image); why != "" {
			message += ": " + why
		}
		r.Record(about, true, reasonSignatureRejected, message)
	}
}

// rejection returns why the first judged signature is not trusted, or not valid for the image.
func rejection(image *imagev1.Image) string {
	for _, s := range image.Signatures {
		for _, c := range s.Conditions {
			if c.Status == corev1.ConditionFalse && c.Message != "" {
				return c.Message
			}
		}
	}
	return ""
}

// Outdated records that pods run another image than a tag leads to now.
func (r *Recorder) Outdated(tag *imagev1.ImageTag, message string) {
	r.Record(aboutTag(tag), false, reasonOutdated, message)
}

// Overwritten records that a tag moved although it must not.
func (r *Recorder) Overwritten(tag *imagev1.ImageTag, message string) {
	r.Record(aboutTag(tag), true, reasonTagOverwritten, message)
}

func aboutTag(tag *imagev1.ImageTag) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: imagev1.GroupVersion.String(), Kind: "ImageTag", Namespace: tag.Namespace, Name: tag.Name, UID: tag.UID}
}

// Guarded records that a guarded tag of a stream waits for a verdict, or has moved.
func (r *Recorder) Guarded(stream *imagev1.ImageStream, waits bool, message string) {
	reason := reasonPromoted
	if waits {
		reason = verdicts.ReasonNotVerified
	}
	r.Record(&corev1.ObjectReference{
		APIVersion: imagev1.GroupVersion.String(), Kind: "ImageStream", Namespace: stream.Namespace, Name: stream.Name, UID: stream.UID,
	}, waits, reason, message)
}
