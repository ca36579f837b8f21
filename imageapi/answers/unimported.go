package answers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxJobsFound bounds the imports that are looked up for one answer.
const maxJobsFound = 10

// unimported fills in what is known of a reference that is not imported from the pods that name or
// run it, if the caller may see these: which digests they run, and why an import failed.
func (s *session) unimported(ctx context.Context, a *Answer, m *resolved) {
	if a.State != Absent && a.State != NotImported || a.Running == nil || a.Running.Pods == 0 || s.rights.listPods != "" {
		return
	}
	values := []string{m.digest}
	if m.digest == "" {
		values = s.spellings(m.ref)
	}
	containers, _, err := s.Containers.Naming(ctx, values, maxContainers)
	if err != nil {
		return // what is unknown of pods is said already
	}
	var digests []string
	var asked []runningImport
	for _, c := range containers {
		if s.only != "" && c.Namespace != s.only {
			continue
		}
		if digest, err := s.runs(ctx, c.Image, c.ImageID, m.ref, nil); err == nil && digest != "" && !slices.Contains(digests, digest) {
			digests = append(digests, digest)
		}
		one := runningImport{push.OfCluster(c.Cluster), podimages.Runs(c.Image, c.ImageID).String()}
		if len(asked) < maxJobsFound && !slices.Contains(asked, one) {
			asked = append(asked, one)
		}
	}
	if m.digest == "" && len(digests) > 0 {
		s.runsUnder(ctx, a, m.ref, digests)
	}
	s.failedImport(ctx, a, asked)
}

// runsUnder says what pods run under a tag that is not imported.
func (s *session) runsUnder(ctx context.Context, a *Answer, tag reference.Reference, digests []string) {
	slices.Sort(digests)
	named := digests[:min(len(digests), maxOthers)]
	is := "not imported either"
	if len(digests) == 1 {
		image, err := s.image(ctx, digests[0])
		switch {
		case err != nil:
			return
		case image != nil && slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), tag.Bare()):
			is, a.Suggestion = "imported", tag.WithDigest(image.Name).String()
		case image != nil:
			is, a.Suggestion = "imported from elsewhere", image.Name
		}
	}
	a.Message = fmt.Sprintf("%s is not imported, so it is not known where it leads; its pods run %s", tag, strings.Join(named, ", "))
	switch more := len(digests) - len(named); {
	case len(digests) == 1:
		a.Message += ", which is " + is
	case more > 0:
		a.Message += fmt.Sprintf(" and %d more", more)
	}
	a.Message = printable.Line(a.Message, maxText)
}

// runningImport names the import of what a pod runs.
type runningImport struct {
	source push.Source
	key    string
}

// failedImport says why the last import of what pods run failed.
func (s *session) failedImport(ctx context.Context, a *Answer, asked []runningImport) {
	if s.Jobs == nil {
		return
	}
	for _, one := range asked {
		job, err := s.Jobs.Find(ctx, one.source, one.key)
		if err != nil || job == nil || job.Error == "" {
			continue
		}
		a.Checked.Failing = printable.Line(job.Error, maxText)
		a.Checked.FailingSince = &metav1.Time{Time: job.Enqueued.Truncate(time.Second)}
		a.Message = printable.Line(a.Message+"; the last attempt to import it failed: "+job.Error, maxText)
		return
	}
}
