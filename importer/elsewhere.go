package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// search looks for the signatures of an image in the repository of a session, and in the one that
// the configuration names for the image. The findings are of the image's own repository, as: a
// signature counts there wherever it is kept. If only the other repository cannot be read, the
// error is a partialError.
func (im *Importer) search(ctx context.Context, at *pull.Session, as reference.Reference, digest string, since time.Time, listed bool) (found []imagev1.ImageSignature, annotations map[string]string, warnings []string, err error) {
	found, annotations, warnings, err = im.finder.Find(ctx, at.Repository.Digest(digest), as, at.Transport, since, listed)
	other, ok := im.signaturesOf(as)
	if partial, isPartial := errors.AsType[partialError](err); !ok || err != nil && !(isPartial && partial.Partial()) {
		return found, annotations, warnings, err
	}
	var more []imagev1.ImageSignature
	var also map[string]string
	var warned []string
	otherErr := im.Reach(ctx, other.WithDigest(digest), func(at *pull.Session) (err error) {
		more, also, warned, err = im.finder.Find(ctx, at.Repository.Digest(digest), as, at.Transport, since, false)
		return err
	})
	if otherErr != nil && also[annotation.Unread] == "" {
		why := pull.Clean(otherErr.Error())
		also, warned = withUnread(also, why), append(warned, why)
	}
	if otherErr != nil && err == nil {
		err = elsewhereError{otherErr}
	}
	for _, text := range warned {
		warnings = append(warnings, fmt.Sprintf("in %s: %s", other, text))
	}
	return join(found, more), joinAnnotations(annotations, also, other.String()), warnings, err
}

// signaturesOf returns the repository that has further signatures of an image; ok is false if there
// is none.
func (im *Importer) signaturesOf(as reference.Reference) (other reference.Reference, ok bool) {
	config, _, err := im.Rules(as.Name(), false)
	if err != nil || config.Signatures == "" {
		return other, false
	}
	other, err = reference.ParseRepository(config.Signatures)
	return other, err == nil && other.Name() != as.Name()
}

// elsewhereError is an error about a repository that has further signatures.
type elsewhereError struct{ error }

// Unwrap returns the error.
func (e elsewhereError) Unwrap() error { return e.error }

// Partial is part of partialError.
func (elsewhereError) Partial() bool { return true }

func withUnread(annotations map[string]string, why string) map[string]string {
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotation.Unread] = why
	return annotations
}

// join appends the signatures that are not there.
func join(found, more []imagev1.ImageSignature) []imagev1.ImageSignature {
	for _, s := range more {
		if !slices.ContainsFunc(found, func(f imagev1.ImageSignature) bool { return f.Name == s.Name }) {
			found = append(found, s)
		}
	}
	return found
}

// joinAnnotations joins the findings of a search in the image's repository (found) and of one in
// the repository other (more).
func joinAnnotations(found, more map[string]string, other string) map[string]string {
	if found == nil {
		found = map[string]string{}
	}
	if documents := documentsOf(more); len(documents) > 0 {
		for i := range documents {
			documents[i].Repository = other
		}
		text, _ := json.Marshal(documents) // texts and numbers always marshal
		more[annotation.Documents] = string(text)
	}
	for key, value := range more {
		switch key {
		case annotation.Manifests: // they are not in the image's repository
		case annotation.Attestations, annotation.Documents, annotation.Warnings:
			found[key] = joinArrays(found[key], value)
		case annotation.Unread, annotation.Unusable:
			found[key] = cmp.Or(found[key], fmt.Sprintf("in %s: %s", other, value))
		default:
			found[key] = cmp.Or(found[key], value)
		}
	}
	return found
}

// joinArrays joins two arrays in JSON, either of which may be "".
func joinArrays(a, b string) string {
	var all, more []json.RawMessage
	_ = json.Unmarshal([]byte(a), &all) // the finder's own
	_ = json.Unmarshal([]byte(b), &more)
	text, _ := json.Marshal(append(all, more...))
	return string(text)
}
