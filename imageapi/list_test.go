package imageapi_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// names of a list of images, by the reference's repository for readability.
func (s storages) list(t *testing.T, options *internalversion.ListOptions) []string {
	t.Helper()
	obj, err := s.images.List(requestContext(), options)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, i := range obj.(*imagev1.ImageList).Items {
		out = append(out, i.DockerImageReference)
	}
	return out
}

func TestFieldSelectors(t *testing.T) {
	s := newStorages(t, nil)
	oci, docker, plain := ociImage(t), bareImage(t, "docker-schema2.json", "docker-config.json"), plainImage()
	oci.DockerImageReference, docker.DockerImageReference = "registry.example.com/oci", "registry.example.com/docker"
	plain.DockerImageReference = "registry.example.com/plain"
	for _, i := range []*imagev1.Image{oci, docker, plain} {
		s.mustCreate(t, i)
	}
	tests := []struct {
		selector string
		want     []string
	}{
		{"metadata.name=" + docker.Name, []string{docker.DockerImageReference}},
		{"dockerImageReference=registry.example.com/plain", []string{plain.DockerImageReference}},
		{"dockerImageManifestMediaType=" + manifest.MediaTypeOCIManifest, []string{oci.DockerImageReference}},
		{"dockerImageMetadata.Architecture=amd64", []string{docker.DockerImageReference}},
		{"dockerImageMetadata.Architecture=s390x", []string{plain.DockerImageReference}},
		{"dockerImageMetadata.Architecture!=s390x,metadata.name!=" + oci.Name, []string{docker.DockerImageReference}},
		{"dockerImageMetadata.Architecture=arm64,dockerImageReference=registry.example.com/docker", []string{}},
		{"dockerImageReference=", []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.selector, func(t *testing.T) {
			got := s.list(t, &internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(tt.selector), LabelSelector: labels.Everything()})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("listed (-want +got):\n%s", diff)
			}
		})
	}
}

// The API server turns the error into a 400.
func TestFieldLabels(t *testing.T) {
	kind := imagev1.GroupVersion.WithKind("Image")
	for _, label := range []string{"metadata.name", "dockerImageReference", "dockerImageManifestMediaType", "dockerImageMetadata.Architecture"} {
		got, value, err := scheme.ConvertFieldLabel(kind, label, "x")
		if got != label || value != "x" || err != nil {
			t.Errorf("%s: %q %q %v", label, got, value, err)
		}
	}
	for label, values := range map[string][]string{"signatures.verified": {"True", "False", "Unknown", "Unsigned"}, "signatures.signer": {"", "anybody"}, "references": {"registry.example.com/team/app"}, "used": {"true", "false"}} {
		for _, want := range values {
			if got, value, err := scheme.ConvertFieldLabel(kind, label, want); got != label || value != want || err != nil {
				t.Errorf("%s=%s: %q %q %v", label, want, got, value, err)
			}
		}
	}
	if _, value, err := scheme.ConvertFieldLabel(kind, "references", "index.docker.io/library/busybox"); value != "docker.io/library/busybox" || err != nil {
		t.Errorf("the other name of Docker Hub: %q %v", value, err)
	}
	for label, value := range map[string]string{"signatures.verified": "true", "used": "yes"} {
		if _, _, err := scheme.ConvertFieldLabel(kind, label, value); err == nil {
			t.Errorf("%s=%s is accepted", label, value)
		}
	}
	for _, label := range []string{"signatures", "metadata.namespace", "dockerImageMetadata.Size", "nonsense", ""} {
		if _, _, err := scheme.ConvertFieldLabel(kind, label, "x"); err == nil {
			t.Errorf("%q is accepted", label)
		}
	}
}

// A watch by a field sees an image come when it begins to match, and go when it no longer does.
func TestWatchByField(t *testing.T) {
	s := newStorages(t, nil)
	created := s.mustCreate(t, plainImage())
	w, err := s.images.Watch(requestContext(), &internalversion.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("dockerImageReference", "registry.example.com/wanted"),
		LabelSelector:   labels.Everything(),
		ResourceVersion: created.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, reference := range []string{"registry.example.com/wanted", "registry.example.com/unwanted"} {
		created.DockerImageReference = reference
		if created, err = s.update(created); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		event := <-w.ResultChan()
		if event.Type != want {
			t.Errorf("event %s %v, want %s", event.Type, event.Object, want)
		}
	}
}

func TestDeleteCollectionByField(t *testing.T) {
	s := newStorages(t, nil)
	for i := range 5 {
		image := plainImage()
		image.Name = fmt.Sprintf("image-%d", i)
		image.DockerImageReference = fmt.Sprintf("registry.example.com/%d", i%2)
		s.mustCreate(t, image)
	}
	_, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("dockerImageReference", "registry.example.com/0"), LabelSelector: labels.Everything(),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"registry.example.com/1", "registry.example.com/1"}
	if diff := cmp.Diff(want, s.list(t, &internalversion.ListOptions{})); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
