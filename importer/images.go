package importer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Images stores Images. Its errors are those of the Kubernetes API: package apierrors recognizes
// NotFound, AlreadyExists and Conflict.
type Images = record.Images

// Recorder are Images of a server that takes records of registries' answers and merges them with
// the stored objects itself, so that clients meet no conflicts.
type Recorder interface {
	// Record returns record.ErrUnsupported if the server has no such records, or the item is too
	// large for one.
	Record(ctx context.Context, item *record.Item) (*record.Result, error)
}

type wholeKey struct{}

// WithWhole returns a context for an import whose Images are to have what the server derives, too.
func WithWhole(ctx context.Context) context.Context {
	return context.WithValue(ctx, wholeKey{}, true)
}

type briefKey struct{}

// WithBrief returns a context for an import whose caller needs little of an unchanged Image: its
// name, its UID, and the annotations about where it is gone. Such an Image is not read, which saves
// a third of the client's processor time for it.
func WithBrief(ctx context.Context) context.Context {
	return context.WithValue(ctx, briefKey{}, true)
}

// isBrief reports whether the caller of an import has called WithBrief.
func isBrief(ctx context.Context) bool {
	brief, _ := ctx.Value(briefKey{}).(bool)
	return brief
}

// Action is the effect of an import on an Image.
type Action = record.Action

// The effects of an import on an Image.
const (
	Created   = record.Created
	Updated   = record.Updated
	Unchanged = record.Unchanged
)

// storeImage stores the findings of an import of an image in repository. found is the stored Image,
// or nil. searched is true if fresh has the results of a new search for signatures.
func (im *Importer) storeImage(ctx context.Context, images Images, found, fresh *imagev1.Image, repository reference.Reference, searched bool) (*imagev1.Image, Action, error) {
	unlock, err := im.lockImage(ctx, fresh.Name)
	if err != nil {
		return found, Unchanged, err
	}
	defer unlock()
	if recorder, ok := images.(Recorder); ok && record.Carries(fresh) {
		if found != nil && record.IsKnown(found, fresh, repository, searched) {
			return found, Unchanged, nil
		}
		result, err := recorder.Record(ctx, record.OfImage(found, fresh, repository, searched))
		if !errors.Is(err, record.ErrUnsupported) {
			if err != nil {
				return found, Unchanged, err
			}
			if whole, _ := ctx.Value(wholeKey{}).(bool); whole {
				found, err = images.Get(ctx, fresh.Name, metav1.GetOptions{})
				return found, result.Action, err
			}
			return result.Stored(fresh), result.Action, nil
		}
	}
	return record.Store(ctx, images, found, fresh, repository, searched)
}

// lockImage makes the writers of an Image take turns. The holder of the lock waits only for the
// API.
func (im *Importer) lockImage(ctx context.Context, name string) (unlock func(), err error) {
	return im.Client.Lock(ctx, "image "+name)
}

// DryRun implements Images and writes nothing. It reads from Images, and remembers what was written
// to it. The zero value is empty.
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
