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
)

// Images is where Images are kept. Errors are those of the Kubernetes API:
// NotFound, AlreadyExists and Conflict are told by package apierrors.
type Images interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error)
	Create(ctx context.Context, image *imagev1.Image, options metav1.CreateOptions) (*imagev1.Image, error)
	Update(ctx context.Context, image *imagev1.Image, options metav1.UpdateOptions) (*imagev1.Image, error)
}

// Action is what became of an Image.
type Action string

const (
	Created   Action = "Created"
	Updated   Action = "Updated"
	Unchanged Action = "Unchanged"
)

// conflictBackoff is for writers that meet in one Image, such as imports of many
// tags of one digest.
var conflictBackoff = wait.Backoff{Steps: 12, Duration: 5 * time.Millisecond, Factor: 1.6, Jitter: 0.5}

// store writes what an import learned. found is what fresh adds to: the stored
// Image, or nil. Nothing that is stored is taken away.
func store(ctx context.Context, images Images, found, fresh *imagev1.Image) (*imagev1.Image, Action, error) {
	if found == nil {
		created, err := images.Create(ctx, fresh, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return created, Created, err
		}
	}
	action := Unchanged
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		if found == nil {
			var err error
			if found, err = images.Get(ctx, fresh.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		merged, changed := merge(found, fresh)
		if !changed {
			return nil
		}
		updated, err := images.Update(ctx, merged, metav1.UpdateOptions{})
		if err != nil {
			found = nil // read it again
			return err
		}
		found, action = updated, Updated
		return nil
	})
	return found, action, err
}

// merge adds what fresh knows to a copy of stored.
func merge(stored, fresh *imagev1.Image) (merged *imagev1.Image, changed bool) {
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
	maps.Copy(annotations, fresh.Annotations)
	annotation.SetKnown(annotations, append(annotation.Known(merged.Annotations), annotation.Known(fresh.Annotations)...))
	merged.Annotations = annotations
	manifest.DropHeld(merged)
	changed = changed || !maps.Equal(annotations, stored.Annotations)
	for _, s := range fresh.Signatures {
		if !slices.ContainsFunc(merged.Signatures, func(have imagev1.ImageSignature) bool { return have.Name == s.Name }) {
			merged.Signatures, changed = append(merged.Signatures, s), true
		}
	}
	return merged, changed
}

// DryRun is an Images that writes nothing: it reads from Images and answers
// writes as if they had been done. The zero value holds no Image at first.
type DryRun struct {
	// Images is read from; nil is empty.
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

// storing says which Image a failure of Images is about.
func storing(digest string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("storing image %s: %w", digest, err)
}
