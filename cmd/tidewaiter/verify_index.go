package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// maxTagsLookedAt is how many tags of a repository are searched for an index that lists an image.
const maxTagsLookedAt = 100

// listing searches a registry for an index that lists an image, which was asked for by its digest.
// A registry does not tell which indexes list an image; tags lead to those that are in use.
type listing struct {
	importer *importer.Importer
	set      *policy.Set
	asked    reference.Reference
	image    *imagev1.Image
	now      time.Time

	warnings []string // about the index
	notFound string   // what to do if there is no index
}

// indexes finds an index that is verified by the policies of the image. If one meets only some of
// several alternatives, and so may not vouch for the image, it finds further ones.
func (l *listing) indexes(ctx context.Context) (found []*imagev1.Image, err error) {
	m, err := manifest.Of(l.image)
	if l.asked.Digest == "" || err == nil && m.Kind == manifest.KindIndex {
		return nil, nil
	}
	tags, missing := []string{l.asked.Tag}, []string(nil)
	if l.asked.Tag == "" {
		if tags, missing, err = l.importer.Tags(ctx, l.asked); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{}
	for _, tag := range tags[:min(len(tags), maxTagsLookedAt)] {
		index, err := l.importer.Index(ctx, l.asked.WithTag(tag))
		if pull.ReasonOf(err) == pull.NotFound {
			continue // it was deleted in between
		}
		if err != nil {
			return nil, err
		}
		if index == nil || seen[index.Digest] || !slices.ContainsFunc(index.ImageChildren(), func(d manifest.Descriptor) bool { return d.Digest == l.image.Name }) {
			continue
		}
		seen[index.Digest] = true
		image, warnings, err := l.importer.Find(ctx, l.asked.WithDigest(index.Digest))
		l.warnings = append(l.warnings, warnings...)
		if err != nil {
			return nil, err
		}
		signatures.VerifyImage(image, l.set, l.now, nil)
		for _, v := range annotation.Judged(image.Annotations) {
			switch {
			case v.Policy != l.policies():
			case v.Verified == verdicts.VerifiedTrue && signatures.VouchesForAll(v, l.covering()):
				return append(found, image), nil
			case v.Verified == verdicts.VerifiedTrue:
				found = append(found, image)
			case v.Verified == verdicts.VerifiedUnknown:
				return nil, fmt.Errorf("of the index %s: %s", image.Name, v.Message)
			}
		}
	}
	if len(tags) > maxTagsLookedAt {
		return nil, fmt.Errorf("only the first %d of %d tags were searched; ask for %s", maxTagsLookedAt, len(tags), l.withTag())
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("not all tags may have been searched: %s; ask for %s", strings.Join(missing, "; "), l.withTag())
	}
	l.notFound = fmt.Sprintf("no signer trusted by the policy signed this digest, nor an index that lists it and that a tag leads to now; "+
		"if an index under another tag lists it, ask for %s, or ask a server that imported that index", l.withTag())
	if l.asked.Tag != "" {
		l.notFound = fmt.Sprintf("no signer trusted by the policy signed this digest, nor an index that lists it and that the tag %s leads to", l.asked.Tag)
	}
	return found, nil
}

// covering are the policies that cover the image.
func (l *listing) covering() []*policy.Policy {
	return l.set.For(l.asked.Bare().WithDigest(l.image.Name))
}

// policies are their names.
func (l *listing) policies() string {
	var names []string
	for _, p := range l.covering() {
		names = append(names, p.ID())
	}
	return strings.Join(names, ",")
}

// withTag is how to ask for the image by a tag of its index.
func (l *listing) withTag() string { return l.asked.Name() + ":TAG@" + l.image.Name }
