package importer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Images is where Images are kept. Errors are those of the Kubernetes API: package apierrors tells
// NotFound, AlreadyExists and Conflict.
type Images interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error)
	Create(ctx context.Context, image *imagev1.Image, options metav1.CreateOptions) (*imagev1.Image, error)
	Update(ctx context.Context, image *imagev1.Image, options metav1.UpdateOptions) (*imagev1.Image, error)
}

// Action is the effect of an import on an Image.
type Action string

const (
	Created   Action = "Created"
	Updated   Action = "Updated"
	Unchanged Action = "Unchanged"
)

// conflictBackoff is for writers of several processes that meet in one Image. Those of one Importer
// take turns.
var conflictBackoff = wait.Backoff{Steps: 12, Duration: 5 * time.Millisecond, Factor: 1.6, Jitter: 0.5}

// storeImage writes what an import learned of an image in repository. found is the stored Image, or
// nil. It adds to that, and removes nothing but results of earlier searches of the repository.
// searched says that fresh has the results of a new search.
func (im *Importer) storeImage(ctx context.Context, images Images, found, fresh *imagev1.Image, repository reference.Reference, searched bool) (*imagev1.Image, Action, error) {
	action := Unchanged
	unlock, err := im.lockImage(ctx, fresh.Name)
	if err != nil {
		return found, action, err
	}
	defer unlock()
	stale := false // somebody has written since found was read
	var offered []string
	for more := true; more; {
		var added []string
		err := retry.RetryOnConflict(conflictBackoff, func() error {
			if stale { // read after the pause: others write in it
				current, err := images.Get(ctx, fresh.Name, metav1.GetOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					return err
				}
				if found, stale = current, false; err != nil {
					found = nil
				}
			}
			merged, changed := fresh.DeepCopy(), true
			if found != nil {
				merged, changed = merge(found, fresh, repository)
			} else {
				merged.Signatures = nil
				delete(merged.Annotations, annotation.Repositories)
			}
			if more = false; searched {
				added, more = mergeFound(merged, fresh, repository.String(), offered)
				changed = changed || found == nil || len(added) > 0 || len(merged.Signatures) != len(found.Signatures) || !maps.Equal(merged.Annotations, found.Annotations)
			}
			if !changed {
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

// lockImage has the writers of an Image take turns. Its holder waits for nothing but the Images.
func (im *Importer) lockImage(ctx context.Context, name string) (unlock func(), err error) {
	return im.Client.Lock(ctx, "image "+name)
}

// merge adds what fresh knows of an image in repository to a copy of stored, except signatures.
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
	if _, ok := annotations[annotation.Gone]; ok { // the registry has it after all
		missing := annotation.Missing(annotations)
		for _, ref := range append(known, repository.WithDigest(fresh.Name)) {
			delete(missing, ref)
		}
		annotation.SetMissing(annotations, missing)
	}
	// Results of searches were once the image's and not the repository's.
	delete(annotations, annotation.Attestations)
	delete(annotations, annotation.Warnings)
	merged.Annotations = annotations
	manifest.DropHeld(merged)
	return merged, changed || !maps.Equal(annotations, stored.Annotations)
}

// DryRun is an Images that writes nothing: it reads from Images and answers writes as if they had
// been done. The zero value is empty.
type DryRun struct {
	// Images is where Images are read; nil is empty.
	Images Images

	mu      sync.Mutex
	written map[string]*imagev1.Image
}

// Get implements Images.
func (d *DryRun) Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error) {
	d.mu.Lock()
	image := d.written[name]
	d.mu.Unlock()
	switch {
	case image != nil:
		return image.DeepCopy(), nil
	case d.Images != nil:
		return d.Images.Get(ctx, name, options)
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

// Create implements Images.
func (d *DryRun) Create(ctx context.Context, image *imagev1.Image, _ metav1.CreateOptions) (*imagev1.Image, error) {
	switch _, err := d.Get(ctx, image.Name, metav1.GetOptions{}); {
	case err == nil:
		return nil, apierrors.NewAlreadyExists(imagev1.Resource("images"), image.Name)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	return d.write(image), nil
}

// Update implements Images.
func (d *DryRun) Update(_ context.Context, image *imagev1.Image, _ metav1.UpdateOptions) (*imagev1.Image, error) {
	return d.write(image), nil
}

func (d *DryRun) write(image *imagev1.Image) *imagev1.Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.written == nil {
		d.written = map[string]*imagev1.Image{}
	}
	d.written[image.Name] = image.DeepCopy()
	return image.DeepCopy()
}

// Written lists the Images that would have been written, by name.
func (d *DryRun) Written() []*imagev1.Image {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*imagev1.Image
	for _, name := range slices.Sorted(maps.Keys(d.written)) {
		out = append(out, d.written[name].DeepCopy())
	}
	return out
}

// storing adds to an error of Images which Image it is about.
func storing(digest string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("storing image %s: %w", digest, err)
}
