package imagestream

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxMembers is how many images of a stream are read, the newest first.
const maxMembers = 5000

// member is an image that belongs to a stream: a tag's history has it, or an index in one lists it.
type member struct {
	Name      string
	Reference string         // the reference in the stream
	Image     *imagev1.Image // nil if it is not stored, or not known to be there
}

// members yields the images of a stream, each once.
func (r *Reader) members(ctx context.Context, stream *imagev1.ImageStream) iter.Seq2[member, error] {
	return func(yield func(member, error) bool) {
		var events []*imagev1.TagEvent
		for i := range stream.Status.Tags {
			for j := range stream.Status.Tags[i].Items {
				events = append(events, &stream.Status.Tags[i].Items[j])
			}
		}
		slices.SortStableFunc(events, func(a, b *imagev1.TagEvent) int {
			return cmp.Or(b.Created.Compare(a.Created.Time), strings.Compare(a.Image, b.Image))
		})
		seen := map[string]bool{"": true}
		// take yields one image, and returns what it lists.
		take := func(name, reference string) (lists []string, more bool) {
			if seen[name] {
				return nil, true
			}
			if len(seen) > maxMembers {
				warning.AddWarning(ctx, "", fmt.Sprintf("only the newest %d images of the stream were looked at", maxMembers))
				return nil, false
			}
			seen[name] = true
			image, err := r.stored(ctx, name, reference)
			if image != nil {
				lists = imageregistry.ChildrenOf(image)
			}
			return lists, yield(member{name, reference, image}, err) && err == nil
		}
		for _, event := range events {
			lists, more := take(event.Image, event.DockerImageReference)
			for i := 0; more && i < len(lists); i++ {
				if ref, err := reference.Parse(event.DockerImageReference); err == nil && reference.IsDigest(lists[i]) {
					_, more = take(lists[i], ref.WithDigest(lists[i]).String())
				}
			}
			if !more {
				return
			}
		}
	}
}

// Find returns the image of a stream with a digest, or with the beginning of one.
func (r *Reader) Find(ctx context.Context, stream *imagev1.ImageStream, id string) (*member, error) {
	event, err := imageEvent(stream, id)
	if err == nil {
		image, err := r.stored(ctx, event.Image, event.DockerImageReference)
		return &member{event.Image, event.DockerImageReference, image}, err
	}
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	notFound := err
	var found *member // listed by an index
	for m, err := range r.members(ctx, stream) {
		switch {
		case err != nil:
			return nil, err
		case !begins(m.Name, id):
		case found != nil:
			return nil, ambiguous(stream, id, found.Name, m.Name)
		case reference.IsDigest(id):
			return &m, nil
		default:
			found = &m
		}
	}
	if found == nil {
		return nil, notFound
	}
	return found, nil
}

// begins reports whether a digest begins with a text, with or without its algorithm.
func begins(digest, with string) bool {
	return with != "" && (strings.HasPrefix(digest, with) || strings.HasPrefix(strings.TrimPrefix(digest, "sha256:"), with))
}

func ambiguous(stream *imagev1.ImageStream, id, one, other string) error {
	return apierrors.NewConflict(imagev1.Resource("imagestreamimages"), stream.Name+"@"+id, fmt.Errorf("it is the beginning of %s and of %s: give more of the digest", one, other))
}
