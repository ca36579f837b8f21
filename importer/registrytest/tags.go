package registrytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages/pagestest"
)

var tagResource = imagev1.Resource("imagetags")

// List lists Images by a reference or repository that they are recorded under, one a page.
func (s *Images) List(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	if s.Expire {
		return pagestest.Expiring(s.list)(ctx, o)
	}
	return s.list(ctx, o)
}

func (s *Images) list(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageList, error) {
	if digests, ok := strings.CutPrefix(o.FieldSelector, selectors.Digest+"="); ok {
		return s.listDigests(ctx, strings.Split(digests, selectors.DigestSeparator))
	}
	want, ok := strings.CutPrefix(o.FieldSelector, selectors.RecordedReferences+"=")
	if !ok {
		return nil, apierrors.NewBadRequest("this test selects by " + selectors.Digest + " and " + selectors.RecordedReferences + " only")
	}
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.known[want]))
	s.mu.Unlock()
	i, _ := slices.BinarySearch(names, o.Continue)
	list := &imagev1.ImageList{}
	if i < len(names) {
		image, err := s.Get(ctx, names[i], metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *image)
	}
	if i+1 < len(names) {
		list.Continue = names[i+1]
	}
	return list, nil
}

// listDigests lists the Images of whole digests.
func (s *Images) listDigests(ctx context.Context, digests []string) (*imagev1.ImageList, error) {
	list := &imagev1.ImageList{}
	for _, digest := range digests {
		image, err := s.Get(ctx, digest, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *image)
	}
	return list, nil
}

// GetTag reads an ImageTag.
func (s *Images) GetTag(_ context.Context, name string, _ metav1.GetOptions) (*imagev1.ImageTag, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tag, ok := s.tags[name]; ok {
		return tag.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(tagResource, name)
}

// UpdateTag replaces an ImageTag of the same resource version, or makes one that has none.
func (s *Images) UpdateTag(_ context.Context, tag *imagev1.ImageTag, _ metav1.UpdateOptions) (*imagev1.ImageTag, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := ""
	if old, ok := s.tags[tag.Name]; ok {
		version = old.ResourceVersion
	}
	if version != tag.ResourceVersion {
		return nil, apierrors.NewConflict(tagResource, tag.Name, fmt.Errorf("it has resource version %q, not %q", version, tag.ResourceVersion))
	}
	if s.tags == nil {
		s.tags = map[string]*imagev1.ImageTag{}
	}
	s.revision++
	tag = tag.DeepCopy()
	tag.ResourceVersion = strconv.Itoa(s.revision)
	s.tags[tag.Name] = tag
	if ref, ok := tags.Reference(tag); ok {
		if s.tagged == nil {
			s.tagged = map[string]map[string]bool{}
		}
		if s.tagged[ref.Name()] == nil {
			s.tagged[ref.Name()] = map[string]bool{}
		}
		s.tagged[ref.Name()][tag.Name] = true
	}
	s.tagWrites = append(s.tagWrites, tag.Name)
	return tag.DeepCopy(), nil
}

// ListTags lists the ImageTags of a repository.
func (s *Images) ListTags(ctx context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	if s.Expire {
		return pagestest.Expiring(s.listTags)(ctx, o)
	}
	return s.listTags(ctx, o)
}

func (s *Images) listTags(_ context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	repository, ok := selector.RequiresExactMatch(selectors.TagRepository)
	part, isNamed := selector.RequiresExactMatch(selectors.Named)
	if !ok && !isNamed {
		return nil, apierrors.NewBadRequest("this test selects by " + selectors.TagRepository + ", and maybe " + selectors.TagImage + ", or by " + selectors.Named)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &imagev1.ImageTagList{}
	names := slices.Collect(maps.Keys(s.tagged[repository]))
	if isNamed {
		names = slices.Collect(maps.Keys(s.tags))
	}
	slices.Sort(names)
	for _, name := range names {
		image, _ := tags.Now(s.tags[name])
		if ref, ok := tags.Reference(s.tags[name]); isNamed && strings.Contains(ref.String(), part) && name >= o.Continue || !isNamed && ok && selector.Matches(fields.Set{selectors.TagRepository: ref.Name(), selectors.TagImage: image}) && name >= o.Continue {
			if o.Limit > 0 && int64(len(list.Items)) == o.Limit {
				list.Continue = name
				break
			}
			list.Items = append(list.Items, *s.tags[name].DeepCopy())
		}
	}
	return list, nil
}

// TagWrites lists the names of the ImageTags that were written so far.
func (s *Images) TagWrites() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tagWrites)
}
