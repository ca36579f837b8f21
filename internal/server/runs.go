package server

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/runs"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// runVerdicts judges what ran: a runs.Verdicts.
type runVerdicts struct{ *Server }

// VerdictOf is part of runs.Verdicts.
func (s runVerdicts) VerdictOf(ctx context.Context, namespace, image, imageID string) (imageruns.RunVerdict, string) {
	answer, err := s.answerer.Container(ctx, namespace, image, imageID)
	v := answer.VerdictOr(err)
	return imageruns.RunVerdict{
		Verified: v.Verified, Reason: v.Reason, Message: v.Message, Policies: v.Policies, PolicyVersions: answer.PolicyVersions, Signers: v.Signers, ExceptionUntil: v.Until,
	}, answer.Runs
}

// Turned is part of runs.Verdicts. It records each verdict once for each place, and notifies
// others.
func (s runVerdicts) Turned(ctx context.Context, turns []runs.Turn) {
	held := func(v imageruns.RunVerdict) annotation.Verdict {
		return annotation.Verdict{Verified: v.Verified, Reason: v.Reason, Message: v.Message, Policy: strings.Join(v.Policies, ","), Signers: v.Signers, Until: v.ExceptionUntil}
	}
	images, changes := map[string]*imagev1.Image{}, map[string][]signatures.Change{}
	for _, t := range turns {
		image, place, err := s.answerer.Place(ctx, t.Namespace, t.Image, t.ImageID)
		if err != nil {
			slog.Error("A verdict turned, and what it is on cannot be read", "image", t.Image, "namespace", t.Namespace, "err", err)
		}
		if err != nil || image == nil || slices.ContainsFunc(changes[image.Name], func(c signatures.Change) bool { return c.Place == place }) {
			continue
		}
		images[image.Name] = image
		changes[image.Name] = append(changes[image.Name], signatures.Change{
			HeldVerdict: annotation.HeldVerdict{Place: place, Covered: true, Verdict: held(t.After)}, Before: t.Before.Verified, Former: held(t.Before),
		})
	}
	for name, image := range images {
		s.turned(image, changes[name])
	}
}

// turned records verdicts that turned although no image changed, and notifies about them.
func (s *Server) turned(image *imagev1.Image, turned []signatures.Change) {
	s.judgedAgain(image, turned, imageruns.ByTag)
	if s.notices != nil {
		s.notices.Turned(image, turned)
	}
}

// The most ImageRuns, unless the configuration sets another number. In etcd, whose database is a
// few gigabytes, an ImageRun takes about a kilobyte.
const (
	mostRecords       = 1_000_000
	mostRecordsOfEtcd = 100_000
)

// keepRecords replaces the bounds on the records of what ran.
func (s *Server) keepRecords(c config.Records) {
	most := int64(mostRecords)
	if s.etcd != nil {
		most = mostRecordsOfEtcd
	}
	keep, _ := c.KeepFor() // the configuration was checked
	s.runs.Limit(runs.Limits{Keep: keep, Most: cmp.Or(c.Most, most)})
}

// recheckRuns has the verdicts recorded again of pods that run an image or an image that it lists.
// by is why, "" if another call says it.
func (s *Server) recheckRuns(image *imagev1.Image, by imageruns.By) {
	digests := []string{image.Name}
	for _, m := range image.DockerImageManifests {
		digests = append(digests, m.Digest)
	}
	s.runs.Recheck(by, digests...)
}
