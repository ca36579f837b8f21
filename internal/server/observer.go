package server

import (
	"log/slog"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// observer learns which writes of Images change verdicts: an imageregistry.Observer.
type observer struct{ *Server }

// VerdictChanged logs and records a new verdict on an image, written by an import, a sweep or a
// client.
func (s observer) VerdictChanged(image *imagev1.Image, before, verified string, signers []string) {
	s.recheckRuns(image)
	s.Events.VerdictChanged(image, verified, signers)
	if before == "" {
		slog.Info("A new image has a verdict", "image", image.Name, "verdict", verified)
	}
}

// IndexVerdictChanged has the images that an index lists judged by the index's new verdict.
func (s observer) IndexVerdictChanged(index *imagev1.Image) {
	if s.Verification.Sweeper != nil {
		s.Verification.Sweeper.Follow(index)
	}
}

// JudgedAgain logs each verdict of an image that changed, whether an import, a sweep or a change of
// policies caused it. Guarded tags may have waited for the new verdict.
func (s observer) JudgedAgain(before, after *imagev1.Image) {
	s.recheckRuns(after)
	s.Verification.Inventory.RecountRunning()
	for _, c := range signatures.Changes(before, after) {
		if verdicts.IsVerified(c.Verified) {
			s.promotions.Add(after.Name)
		}
		s.unverified.VerdictChanged(after, c)
		slog.Info("A verdict changed", "image", after.Name, "in", c.Place, "verdict", c.Verified, "before", c.Before, "reason", c.Reason)
	}
}
