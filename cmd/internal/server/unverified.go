package server

import (
	"log/slog"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// unverified are images that pods use and whose verdict was lost while they did.
type unverified struct {
	warnings warn.Limiter

	mu  sync.Mutex
	all map[string]bool // by digest; at most maxUnverified
}

// maxUnverified bounds the images of which the log says that they are verified again.
const maxUnverified = 1000

// verdictChanged logs and records a new verdict on an image, written by an import, a sweep or a
// client.
func (s *Server) verdictChanged(image *imagev1.Image, before, verified string, signers []string) {
	s.Events.VerdictChanged(image, verified, signers)
	switch before {
	case verified:
		return
	case "":
		slog.Info("A new image has a verdict", "image", image.Name, "verdict", verified)
		return
	}
	pods := 0
	if s.answerer != nil {
		pods, _ = s.answerer.Use.Pods(image.Name, image)
	}
	runs := pods > 0
	s.unverified.warn(image.Name, before, verified, runs)
}

// judgedAgain logs each verdict of an image that changed, whoever had it judged again: an import, a
// sweep, a change of policies. Guarded tags may have waited for it.
func (s *Server) judgedAgain(before, after *imagev1.Image) {
	for _, c := range signatures.Changes(before, after) {
		if verdicts.IsVerified(c.Verified) {
			s.promotions.add(after.Name)
		}
		slog.Info("A verdict changed", "image", after.Name, "in", c.Place, "verdict", c.Verified, "before", c.Before, "reason", c.Reason)
	}
}

// warn warns if an image that runs is no longer verified, and once when it is again.
func (u *unverified) warn(image, before, verified string, runs bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch verified {
	case verdicts.VerifiedTrue, verdicts.ByIndex:
		if u.all[image] {
			delete(u.all, image)
			u.warnings.Warn("again "+image, "An image that pods use is verified again", "image", image, "verdict", verified, "before", before)
		}
	case verdicts.VerifiedFalse, verdicts.Unsigned:
		if !runs || u.all[image] || before != verdicts.Excepted && !verdicts.IsVerified(before) {
			return
		}
		if len(u.all) < maxUnverified {
			if u.all == nil {
				u.all = map[string]bool{}
			}
			u.all[image] = true
		}
		if before == verdicts.Excepted {
			u.warnings.Warn(image, "An exception has ended for an image that pods use: tidewaiter describe says what is missing, and where it runs", "image", image, "verdict", verified)
			return
		}
		u.warnings.Warn(image, "An image that pods use is no longer verified: tidewaiter describe says why, and where it runs", "image", image, "verdict", verified, "before", before)
	}
}
