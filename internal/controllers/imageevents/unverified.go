package imageevents

import (
	"context"
	"strings"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/warn"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// maxUnverified bounds the images that are remembered as unverified. The log reports only for these
// that they are verified again.
const maxUnverified = 1000

// Unverified warns of images that lose the verdict for the name that pods use. It is safe for
// concurrent use.
type Unverified struct {
	answerer *answers.Answerer
	warnings warn.Limiter

	mu  sync.Mutex
	all map[string]bool // by digest and place; at most maxUnverified
}

// NewUnverified returns an Unverified that uses a to find out what runs.
func NewUnverified(a *answers.Answerer) *Unverified {
	return &Unverified{answerer: a, all: map[string]bool{}}
}

// VerdictChanged warns if an image that runs is no longer verified in a place where pods name it,
// and once when it is again.
func (u *Unverified) VerdictChanged(image *imagev1.Image, c signatures.Change) {
	key := image.Name + " " + c.Place
	args := []any{"image", image.Name, "in", c.Place, "verdict", c.Verified, "before", c.Before}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch c.Verified {
	case verdicts.VerifiedTrue, verdicts.ByIndex:
		if u.all[key] {
			delete(u.all, key)
			u.warnings.Warn("again "+key, "An image that pods use is verified again", args...)
		}
	case verdicts.VerifiedFalse, verdicts.Unsigned:
		if u.all[key] || c.Before != verdicts.Excepted && !verdicts.IsVerified(c.Before) {
			return
		}
		runs, known := u.runsIn(image, c)
		if !runs {
			if !known {
				u.warnings.Warn("unknown use", "An image is no longer verified, and it is unknown whether pods use it: tidewaiter describe says why", args...)
			}
			return
		}
		if len(u.all) < maxUnverified {
			u.all[key] = true
		}
		if c.Before == verdicts.Excepted {
			u.warnings.Warn(key, "An exception has ended for an image that pods use: tidewaiter describe says what is missing, and where it runs", args...)
			return
		}
		u.warnings.Warn(key, "An image that pods use is no longer verified: tidewaiter describe says why, and where it runs", args...)
	}
}

// runsIn reports whether pods run an image, name it in the place of a verdict, and have that
// verdict. known is false if others may.
func (u *Unverified) runsIn(image *imagev1.Image, c signatures.Change) (runs, known bool) {
	if n, complete := u.answerer.Use.Pods(image.Name, image); n == 0 {
		return false, complete
	}
	place, namespace, _ := strings.Cut(c.Place, "#")
	ref, err := reference.Parse(place)
	if err != nil {
		return false, true
	}
	n, complete, err := u.answerer.PodsNaming(context.Background(), image, ref, namespace, c.Verified)
	return n > 0, complete && err == nil
}
