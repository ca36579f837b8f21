package server

import (
	"log/slog"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// observer learns which writes of Images change verdicts: an imageregistry.Observer.
type observer struct{ *Server }

// VerdictChanged records the verdict on a new image, or on one that is in another repository or has
// another signer.
func (s observer) VerdictChanged(image *imagev1.Image, before, verified string, signers []string) {
	s.recheckRuns(image, "")
	s.Events.VerdictChanged(image, verified, signers)
	if before == "" {
		slog.Info("A new image has a verdict", "image", image.Name, "verdict", verified)
	}
}

// IndexVerdictChanged has the images that an index lists judged by the index's new verdict.
func (s observer) IndexVerdictChanged(index *imagev1.Image) {
	s.Verification.requests.Follow(index)
}

// JudgedAgain logs and records each verdict of an image that changed, whether an import, a sweep or
// a change of policies caused it.
func (s observer) JudgedAgain(image *imagev1.Image, turned []signatures.Change, swept bool) {
	by := imageruns.ByWrite
	if swept {
		by = imageruns.BySweep
	}
	s.judgedAgain(image, turned, by)
}

// judgedAgain logs and records verdicts that changed. Guarded tags may have waited for them.
func (s *Server) judgedAgain(image *imagev1.Image, turned []signatures.Change, by imageruns.By) {
	s.recheckRuns(image, by)
	s.Verification.recount.Send()
	s.Events.Turned(image, turned)
	for _, c := range turned {
		if verdicts.IsVerified(c.Verified) {
			s.promotions.Add(image.Name)
		}
		s.unverified.VerdictChanged(image, c)
		slog.Info("A verdict changed", "image", image.Name, "in", c.Place, "verdict", c.Verified, "before", c.Before, "reason", c.Reason)
	}
}
