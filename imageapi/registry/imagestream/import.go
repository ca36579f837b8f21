package imagestream

import (
	"context"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const maxConditionMessage = 1024 // bytes of why a tag could not be imported

// Imported returns the reference that a tag wants imported; ok is false for none. The registry of
// the streams itself reports pushes to it.
func (r *Reader) Imported(tag *imagev1.TagReference) (ref reference.Reference, ok bool) {
	if tag.From == nil || tag.From.Kind != "DockerImage" || tag.Reference {
		return reference.Reference{}, false
	}
	ref, err := reference.Parse(tag.From.Name)
	return ref.Pulled(), err == nil && ref.Host != r.Registry
}

// ToImport reports whether a tag wants imported what it follows.
func (r *Reader) ToImport(tag *imagev1.TagReference) bool {
	_, imports := r.Imported(tag)
	return imports && r.Imports
}

// IsSettled reports whether a stream has the result of importing a tag as its spec is now.
func IsSettled(stream *imagev1.ImageStream, tag *imagev1.TagReference) bool {
	if tag.Generation == nil {
		return true
	}
	for i := range stream.Status.Tags {
		own := &stream.Status.Tags[i]
		if own.Tag != tag.Name {
			continue
		}
		failed := tags.Failed(own)
		return len(own.Items) > 0 && own.Items[0].Generation >= *tag.Generation || failed != nil && failed.Generation >= *tag.Generation
	}
	return false
}

// Lead starts a stream's own history of a tag with what the tag led to when it was imported. Later
// moves are read from the tag that it follows.
func Lead(own *imagev1.NamedTagEventList, event imagev1.TagEvent, generation int64) {
	event.Generation = generation
	tags.Add(own, event)
	own.Conditions = nil
}

// SetFailed records why a tag could not be imported. It reports whether that is a change.
func SetFailed(own *imagev1.NamedTagEventList, status *metav1.Status, generation int64) (changed bool) {
	condition := imagev1.TagEventCondition{
		Type: imagev1.ImportSuccess, Status: corev1.ConditionFalse, Reason: string(status.Reason), Message: printable.Line(status.Message, maxConditionMessage),
		LastTransitionTime: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Generation: generation,
	}
	if had := tags.Failed(own); had != nil && had.Reason == condition.Reason && had.Message == condition.Message && had.Generation == condition.Generation {
		return false
	}
	own.Conditions = []imagev1.TagEventCondition{condition}
	return true
}

type importedKey struct{}

// WithImported returns a context for writing a stream some of whose tags have just been imported.
// failed has these tags, each with the status of its import, or nil if it succeeded.
func WithImported(ctx context.Context, failed map[string]*metav1.Status) context.Context {
	return context.WithValue(ctx, importedKey{}, failed)
}

// importedNow reports whether the request that writes a stream has imported a tag, and why that
// failed, if it did.
func importedNow(ctx context.Context, tag string) (failed *metav1.Status, imported bool) {
	all, _ := ctx.Value(importedKey{}).(map[string]*metav1.Status)
	failed, imported = all[tag]
	return failed, imported
}
