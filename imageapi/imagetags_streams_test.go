package imageapi_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

func (s *tagStorages) imageTag(namespace, name string) (*imagev1.ImageTag, error) {
	obj, err := s.tags.Get(inNamespace(namespace, s.asUser), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTag), nil
}

func (s *tagStorages) putImageTag(tag *imagev1.ImageTag) (*imagev1.ImageTag, bool, error) {
	obj, created, err := s.tags.Update(inNamespace("team", s.asUser), tag.Name, rest.DefaultUpdatedObjectInfo(tag.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, false, err
	}
	return obj.(*imagev1.ImageTag), created, nil
}

// Where OpenShift has them, ImageTags are the tags of streams: spec, history and image of each.
func TestImageTagsOfStreams(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	name := s.stored(repository)
	s.lead(s.knownAs(repository, "v1", digestOf(1)), name, "import")
	s.mustCreateStream(stream("app", repository, "prod", "DockerImage/"+repository+":v1", "waits", "DockerImage/registry.example.com/team/none:v1"))
	s.mustCreateStream(stream("other", ""))

	v1, err := s.imageTag("team", "app:v1")
	if err != nil || v1.Spec != nil || len(v1.Status.Items) != 2 || v1.Status.Items[0].Image != name || v1.Image.Name != name || v1.Image.DockerImageManifest != "" {
		t.Errorf("of the repository: %+v, %v", v1, err)
	}
	prod, err := s.imageTag("team", "app:prod")
	if err != nil || prod.Spec.From.Name != repository+":v1" || prod.Status.Items[0].Image != name || prod.Image == nil {
		t.Errorf("of the spec: %+v, %v", prod, err)
	}
	waits, err := s.imageTag("team", "app:waits")
	if err != nil || waits.Spec == nil || waits.Status != nil || waits.Image != nil {
		t.Errorf("nothing is known about it: %+v, %v", waits, err)
	}
	for _, name := range []string{"app:none", "none:v1", tags.Name(s.ref)} {
		if _, err := s.imageTag("team", name); err == nil || err.Error() != fmt.Sprintf("imagetags.image.openshift.io %q not found", name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if stored, err := s.imageTag(tags.Namespace, tags.Name(s.ref)); err != nil || stored.Spec.From.Name != repository+":v1" || stored.Image != nil {
		t.Errorf("of the registry: %+v, %v", stored, err)
	}

	for _, limit := range []int64{0, 1, 2} {
		var names []string
		options := &internalversion.ListOptions{Limit: limit}
		for more := true; more; more = options.Continue != "" {
			obj, err := s.tags.List(inNamespace("team", s.asUser), options)
			if err != nil {
				t.Fatal(err)
			}
			list := obj.(*imagev1.ImageTagList)
			for _, tag := range list.Items {
				names = append(names, tag.Name)
				if got, err := s.imageTag("team", tag.Name); err != nil || (got.Status == nil) != (tag.Status == nil) || tag.Image != nil {
					t.Errorf("the list has %+v, alone it is %+v, %v", tag, got, err)
				}
			}
			options.Continue = list.Continue
		}
		if want := []string{"app:prod", "app:v1", "app:waits"}; !slices.Equal(names, want) {
			t.Errorf("in pages of %d there are %v, want %v", limit, names, want)
		}
	}
	for selector, want := range map[string]int{"image=" + name: 2, "image=": 1, "metadata.name=app:prod": 1, "metadata.namespace=other": 0} {
		parsed, err := fields.ParseSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := s.tags.List(inNamespace("team", s.asUser), &internalversion.ListOptions{FieldSelector: parsed})
		if err != nil || len(obj.(*imagev1.ImageTagList).Items) != want {
			t.Errorf("%s: %+v, %v", selector, obj, err)
		}
	}
	// The registries' tags are elsewhere, alone.
	if got := s.selected(s.tags, ""); !slices.Equal(got, []string{tags.Name(s.ref)}) {
		t.Errorf("in all namespaces are %v", got)
	}
}

// An ImageTag of a stream is written as an ImageStreamTag is.
func TestWritingImageTagsOfStreams(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.knownAs(repository, "v1", digestOf(1))
	tag := &imagev1.ImageTag{ObjectMeta: metav1.ObjectMeta{Name: "app:prod", Namespace: "team", Annotations: map[string]string{"a": "b"}}, Spec: specTag("prod", "DockerImage/"+repository+":v1")}
	ctx := inNamespace("team", s.asUser)
	if _, err := s.tags.Create(ctx, tag.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.imageTag("team", tag.Name); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run: %v", err)
	}
	obj, err := s.tags.Create(ctx, tag.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made := obj.(*imagev1.ImageTag)
	if made.Status == nil || made.Status.Items[0].Image != digestOf(1) || made.Annotations["a"] != "b" || s.stream("app").Spec.Tags[0].Name != "prod" {
		t.Errorf("it was made as %+v", made)
	}
	if _, err := s.tags.Create(ctx, tag.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("made again: %v", err)
	}
	refused := fmt.Errorf("an admission plugin says no")
	changed := made.DeepCopy()
	changed.Spec.From.Name = repository + "@" + digestOf(2)
	_, _, err = s.tags.Update(ctx, changed.Name, rest.DefaultUpdatedObjectInfo(changed.DeepCopy()), rest.ValidateAllObjectFunc, func(_ context.Context, obj, old runtime.Object) error {
		if obj.(*imagev1.ImageTag).Spec.From.Name == changed.Spec.From.Name && old.(*imagev1.ImageTag).Spec.From.Name == repository+":v1" {
			return refused
		}
		return nil
	}, false, &metav1.UpdateOptions{})
	if err != refused {
		t.Errorf("admission is not asked: %v", err)
	}
	if got, created, err := s.putImageTag(changed); err != nil || created || got.Status.Items[0].Image != digestOf(2) || len(got.Status.Items) != 2 {
		t.Errorf("changed: %+v, %t, %v", got, created, err)
	}
	if _, _, err := s.putImageTag(changed); !apierrors.IsConflict(err) {
		t.Errorf("changed from what it was before: %v", err)
	}
	fresh := tag.DeepCopy()
	fresh.Name, fresh.Spec.Name = "new:prod", "prod"
	if got, created, err := s.putImageTag(fresh); err != nil || !created || s.stream("new").Spec.Tags[0].Name != "prod" {
		t.Errorf("made by an update: %+v, %t, %v", got, created, err)
	}
	bad := tag.DeepCopy()
	bad.Name, bad.Spec.From.Kind = "new:bad", "Secret"
	bad.Spec.Name = "bad"
	if _, _, err := s.putImageTag(bad); !apierrors.IsInvalid(err) {
		t.Errorf("that follows a Secret: %v", err)
	}
	if _, _, err := s.tags.Delete(ctx, "app:prod", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.imageTag("team", "app:prod"); !apierrors.IsNotFound(err) || len(s.stream("app").Spec.Tags) != 0 {
		t.Errorf("after it was deleted: %v", err)
	}
	if _, err := s.tags.Watch(ctx, &internalversion.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a watch: %v", err)
	}
	if _, err := s.tags.DeleteCollection(ctx, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &internalversion.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a deletion of all: %v", err)
	}
	if stored, err := s.imageTag(tags.Namespace, tags.Name(s.ref)); err != nil || stored == nil {
		t.Errorf("what is known of the registry is gone: %v", err)
	}
}

// A list of more tags, each with its history, than one answer may have is refused, and read in
// pages.
func TestManyImageTagsOfStreams(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	const many = 501
	for n := range many {
		s.knownAs(repository, fmt.Sprintf("v%03d", n), digestOf(n))
	}
	s.mustCreateStream(stream("app", repository))
	ctx := inNamespace("team", s.asUser)
	if _, err := s.tags.List(ctx, &internalversion.ListOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("all at once: %v", err)
	}
	obj, err := s.tags.List(ctx, &internalversion.ListOptions{Limit: 10000})
	if list := obj.(*imagev1.ImageTagList); err != nil || len(list.Items) != many-1 || list.Continue == "" {
		t.Errorf("a page has %d, goes on at %q, %v", len(list.Items), list.Continue, err)
	}
}
