package registrytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

// Images keeps Images and ImageTags in memory as an API would, with resource versions,
// conflicts and copies in and out. It derives and validates nothing. The zero value is
// empty.
type Images struct {
	mu       sync.Mutex
	stored   map[string]*imagev1.Image
	revision int
	writes   []string

	tags      map[string]*imagev1.ImageTag
	tagWrites []string

	// The names of Images by each reference and repository that they are known by, and of ImageTags by
	// their repository: tests have thousands.
	known, tagged map[string]map[string]bool

	// Expire has each page of a list but the first answered 410 at first.
	Expire bool

	// BeforeUpdate, if set, runs before each Update looks at what is stored.
	BeforeUpdate func(name string)
}

var resource = imagev1.Resource("images")

// Get reads an Image.
func (s *Images) Get(_ context.Context, name string, _ metav1.GetOptions) (*imagev1.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if image, ok := s.stored[name]; ok {
		return image.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

// Create stores a new Image.
func (s *Images) Create(_ context.Context, image *imagev1.Image, _ metav1.CreateOptions) (*imagev1.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.stored[image.Name]; ok {
		return nil, apierrors.NewAlreadyExists(resource, image.Name)
	}
	return s.write("create", image), nil
}

// Update replaces an Image of the same resource version.
func (s *Images) Update(_ context.Context, image *imagev1.Image, _ metav1.UpdateOptions) (*imagev1.Image, error) {
	if s.BeforeUpdate != nil {
		s.BeforeUpdate(image.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.stored[image.Name]
	if !ok {
		return nil, apierrors.NewNotFound(resource, image.Name)
	}
	if old.ResourceVersion != image.ResourceVersion {
		return nil, apierrors.NewConflict(resource, image.Name, fmt.Errorf("it has resource version %s, not %s", old.ResourceVersion, image.ResourceVersion))
	}
	return s.write("update", image), nil
}

// Delete removes an Image.
func (s *Images) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index(name, nil)
	delete(s.stored, name)
}

// index keeps known for an Image that is about to be written, or deleted if image is nil.
func (s *Images) index(name string, image *imagev1.Image) {
	if s.known == nil {
		s.known = map[string]map[string]bool{}
	}
	for _, one := range []*imagev1.Image{s.stored[name], image} {
		if one == nil {
			continue
		}
		for _, ref := range annotation.Known(one.Annotations) {
			for _, by := range []string{ref.String(), ref.Name()} {
				if s.known[by] == nil {
					s.known[by] = map[string]bool{}
				}
				if s.known[by][name] = true; one != image {
					delete(s.known[by], name)
				}
			}
		}
	}
}

func (s *Images) write(verb string, image *imagev1.Image) *imagev1.Image {
	if s.stored == nil {
		s.stored = map[string]*imagev1.Image{}
	}
	s.revision++
	image = image.DeepCopy()
	image.ResourceVersion = strconv.Itoa(s.revision)
	s.index(image.Name, image)
	s.stored[image.Name] = image
	s.writes = append(s.writes, verb+" "+image.Name)
	return image.DeepCopy()
}

// Names lists the names of the stored Images, sorted.
func (s *Images) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.stored))
}

// Writes lists the writes so far as "create <name>" or "update <name>".
func (s *Images) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}
