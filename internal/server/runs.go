package server

import (
	"cmp"
	"context"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/runs"
)

// judgeRun returns the verdict for what a container runs, and the digest of that: a
// runs.Options.VerdictOf.
func (s *Server) judgeRun(ctx context.Context, namespace, image, imageID string) (imageruns.RunVerdict, string) {
	answer, err := s.answerer.Container(ctx, namespace, image, imageID)
	v := answer.VerdictOr(err)
	return imageruns.RunVerdict{
		Verified: v.Verified, Reason: v.Reason, Message: v.Message, Policies: v.Policies, Signers: v.Signers, ExceptionUntil: v.Until,
	}, answer.Runs
}

// The most records of what ran, unless the configuration says something else. Over etcd, whose
// database is a few gigabytes, one takes about a kilobyte.
const (
	mostRecords       = 1_000_000
	mostRecordsOfEtcd = 100_000
)

// keepRecords replaces what is kept of what ran.
func (s *Server) keepRecords(c config.Records) {
	most := int64(mostRecords)
	if s.etcd != nil {
		most = mostRecordsOfEtcd
	}
	keep, _ := c.KeepFor() // the configuration was checked
	s.runs.Limit(runs.Limits{Keep: keep, Most: cmp.Or(c.Most, most)})
}

// recheckRuns has the verdicts of what runs an image, or one that it lists, recorded again.
func (s *Server) recheckRuns(image *imagev1.Image) {
	digests := []string{image.Name}
	for _, m := range image.DockerImageManifests {
		digests = append(digests, m.Digest)
	}
	s.runs.Recheck(digests...)
}
