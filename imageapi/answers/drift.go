package answers

import (
	"context"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Drift is what pods of followed clusters run that name a tag, if that is not what the tag leads to
// now.
type Drift struct {
	// Tag is where the tag leads; nil if that is not known.
	Tag *imagev1.ImageTag
	// Now is the digest that it leads to; "" if it leads nowhere, or that is not known.
	Now string
	// ByCluster and ByDigest count the pods, by cluster and by what they run.
	ByCluster, ByDigest map[string]int
}

// Drift finds out what pods run that name a tag. The program asks, so rights are not looked at.
func (a *Answerer) Drift(ctx context.Context, tag reference.Reference) (Drift, error) {
	s := &session{Answerer: a, resolver: resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Mirrored}}
	target, err := s.tagTarget(ctx, tag)
	if err != nil || target == nil {
		return Drift{}, err
	}
	d := Drift{Tag: target.tag, Now: target.digest}
	d.ByCluster, d.ByDigest = a.otherThan(tag, target)
	return d, nil
}

// otherThan counts the pods that name a tag and run something else than it leads to.
func (a *Answerer) otherThan(tag reference.Reference, leads *resolved) (byCluster, byDigest map[string]int) {
	return a.Naming.Running(tag.String(), func(runs string) bool {
		outdated, known := isOutdated(leads.digest, leads.image, runs)
		return outdated && known
	})
}
