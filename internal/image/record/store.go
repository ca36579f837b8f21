package record

import (
	"context"
	"fmt"
	"maps"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Images stores Images. Its errors are those of the Kubernetes API: package apierrors recognizes
// NotFound, AlreadyExists and Conflict.
type Images interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error)
	Create(ctx context.Context, image *imagev1.Image, options metav1.CreateOptions) (*imagev1.Image, error)
	Update(ctx context.Context, image *imagev1.Image, options metav1.UpdateOptions) (*imagev1.Image, error)
}

// Action is the effect of a record on an Image.
type Action string

const (
	Created   Action = "Created"
	Updated   Action = "Updated"
	Unchanged Action = "Unchanged"
)

// Backoff is for several writers of one object.
var Backoff = wait.Backoff{Steps: 12, Duration: 5 * time.Millisecond, Factor: 1.6, Jitter: 0.5}

// Store merges fresh, what an importer read about an image in repository, into the stored Image.
// found is the stored Image, or nil. Store only adds, except that it replaces the results of
// earlier searches of the repository if searched is true: fresh then has those of a new search. It
// starts again if others write the Image meanwhile.
func Store(ctx context.Context, images Images, found, fresh *imagev1.Image, repository reference.Reference, searched bool) (*imagev1.Image, Action, error) {
	action := Unchanged
	stale := false // another writer has written since found was read
	var offered []string
	for more := true; more; {
		var added []string
		err := retry.RetryOnConflict(Backoff, func() error {
			if stale { // read only after the pause, in which others write
				current, err := images.Get(ctx, fresh.Name, metav1.GetOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					return err
				}
				if found, stale = current, false; err != nil {
					found = nil
				}
			}
			var merged *imagev1.Image
			var changed bool
			if merged, added, more, changed = mergeAll(found, fresh, repository, searched, offered); !changed {
				return nil
			}
			if found == nil {
				created, err := images.Create(ctx, merged, metav1.CreateOptions{})
				if stale = apierrors.IsAlreadyExists(err); stale {
					return apierrors.NewConflict(imagev1.Resource("images"), fresh.Name, err)
				}
				if err == nil {
					found, action = created, Created
				}
				return err
			}
			updated, err := images.Update(ctx, merged, metav1.UpdateOptions{})
			if stale = apierrors.IsConflict(err); err != nil {
				return err
			}
			if found = updated; action != Created {
				action = Updated
			}
			return nil
		})
		if err != nil {
			return found, action, err
		}
		offered = append(offered, added...)
	}
	return found, action, nil
}

// IsKnown reports whether a stored Image already has everything in fresh.
func IsKnown(stored, fresh *imagev1.Image, repository reference.Reference, searched bool) bool {
	_, _, _, changed := mergeAll(stored, fresh, repository, searched, nil)
	return !changed
}

// mergeAll merges fresh into a copy of the stored Image, or into a new one.
func mergeAll(stored, fresh *imagev1.Image, repository reference.Reference, searched bool, offered []string) (merged *imagev1.Image, added []string, more, changed bool) {
	if stored == nil {
		merged, changed = fresh.DeepCopy(), true
		merged.Signatures = nil
		delete(merged.Annotations, annotation.Repositories)
	} else {
		merged, changed = merge(stored, fresh, repository)
	}
	if searched {
		added, more = mergeFound(merged, fresh, repository.String(), offered)
		changed = changed || len(added) > 0 || len(merged.Signatures) != len(stored.Signatures) || !maps.Equal(merged.Annotations, stored.Annotations)
	}
	return merged, added, more, changed
}

// merge merges fresh, about an image in repository, into a copy of stored, except for signatures.
func merge(stored, fresh *imagev1.Image, repository reference.Reference) (merged *imagev1.Image, changed bool) {
	merged = stored.DeepCopy()
	fill := func(field *string, value string) {
		if *field == "" && value != "" {
			*field, changed = value, true
		}
	}
	fill(&merged.DockerImageReference, fresh.DockerImageReference)
	fill(&merged.DockerImageManifest, fresh.DockerImageManifest)
	fill(&merged.DockerImageManifestMediaType, fresh.DockerImageManifestMediaType)
	fill(&merged.DockerImageConfig, fresh.DockerImageConfig)

	annotations := maps.Clone(merged.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	known := annotation.Known(fresh.Annotations)
	for key, value := range fresh.Annotations {
		if key != annotation.Repositories {
			annotations[key] = value
		}
	}
	annotation.SetKnown(annotations, append(annotation.Known(merged.Annotations), known...))
	if _, ok := annotations[annotation.Gone]; ok { // the registry has it again
		missing := annotation.Missing(annotations)
		for _, ref := range append(known, repository.WithDigest(fresh.Name)) {
			delete(missing, ref)
		}
		annotation.SetMissing(annotations, missing)
	}
	// Earlier releases stored results of searches for the image, not for the repository.
	delete(annotations, annotation.Attestations)
	delete(annotations, annotation.Warnings)
	merged.Annotations = annotations
	manifest.DropHeld(merged)
	return merged, changed || !maps.Equal(annotations, stored.Annotations)
}

// Change changes a stored Image, unless change returns false because there is nothing to do. If
// others write at the same time, it calls change again with the newer Image. It does nothing if the
// Image is not stored.
func Change(ctx context.Context, images Images, name string, change func(*imagev1.Image) bool) (changed bool, err error) {
	err = retry.RetryOnConflict(Backoff, func() error {
		changed = false
		image, err := images.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !change(image) {
			return nil
		}
		_, err = images.Update(ctx, image, metav1.UpdateOptions{})
		changed = err == nil
		return err
	})
	return changed, Storing(name, err)
}

// Storing adds the name of the Image to an error of Images.
func Storing(digest string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("storing image %s: %w", digest, err)
}
