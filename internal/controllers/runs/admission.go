package runs

import (
	"time"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/admit"
)

const (
	// maxAdmitted is of how many images it is remembered how they were admitted.
	maxAdmitted = 10_000
	// admittedFor is how long a pod may take from its admission until it runs.
	admittedFor = time.Hour
)

// askedAbout is the subject of an admission review: an image as a pod of a namespace names it.
type askedAbout struct{ cluster, namespace, image string }

// admitted is how it was admitted.
type admitted struct {
	at          time.Time
	as, message string
}

// Admitted notes how an image of a pod was admitted.
func (r *Recorder) Admitted(cluster, namespace, image string, as admit.Action, unknown bool, message string) {
	word := imageruns.AdmissionAllowed
	switch {
	case unknown:
		word = imageruns.AdmissionUnknownAllowed
	case as == admit.Warn:
		word = imageruns.AdmissionWarned
	case as == admit.Audit:
		word = imageruns.AdmissionAudited
	}
	r.admitted.Add(askedAbout{cluster, namespace, image}, admitted{r.Clock.Now(), word, message})
}

// admit fills in how a stretch that has begun was admitted. The caller holds mu.
func (r *Recorder) admit(one *run) {
	spec, status := &one.object.Spec, &one.object.Status
	found, _ := r.admitted.Get(askedAbout{spec.Cluster, one.namespace, spec.Image})
	a, _ := found.(admitted)
	switch age := spec.From.Sub(a.at); {
	case found != nil && age >= -lag && age < admittedFor:
		status.Admission, status.AdmissionMessage = a.as, a.message
	case spec.From.Time.Before(r.started):
		status.Admission, status.AdmissionMessage = imageruns.AdmissionUnknown, "it began before this server started"
	case found != nil && age < -lag:
		status.Admission, status.AdmissionMessage = imageruns.AdmissionUnknown, "the cluster asked about it again after it began, and only the last answer is remembered"
	case r.SeveralServers:
		status.Admission, status.AdmissionMessage = imageruns.AdmissionUnknown, "this server was not asked, but another one may have been"
	default:
		status.Admission = imageruns.AdmissionNeverAsked
	}
	one.dirty, one.in.changed[one] = true, true
}
