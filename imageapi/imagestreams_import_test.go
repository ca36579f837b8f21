package imageapi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// toImport is what streams have to be imported, sorted.
func toImport(t *testing.T, imports *imagestreamimport.TagImports) string {
	t.Helper()
	var all []string
	if _, err := imports.Each(t.Context(), func(refs []reference.Reference) error {
		for _, ref := range refs {
			all = append(all, ref.String())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func parsed(t *testing.T, text string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// told is what a stream says of a tag: the generation of the spec, that of the newest item and its
// image, that of the condition and its reason.
func told(stream *imagev1.ImageStream, tag string) string {
	out := ""
	for i := range stream.Spec.Tags {
		if stream.Spec.Tags[i].Name == tag {
			out = fmt.Sprint(*stream.Spec.Tags[i].Generation)
		}
	}
	for _, list := range stream.Status.Tags {
		if list.Tag != tag {
			continue
		}
		if len(list.Items) > 0 {
			out += fmt.Sprintf(" %d:%s", list.Items[0].Generation, short(list.Items[0].Image))
		}
		for _, c := range list.Conditions {
			out += fmt.Sprintf(" %d:%s=%s:%s", c.Generation, c.Type, c.Status, c.Reason)
		}
	}
	return out
}

func short(digest string) string { return strings.TrimLeft(strings.TrimPrefix(digest, "sha256:"), "0") }

// What tags follow is to be imported once for each generation of their spec, whether that succeeds
// or not; a tag sent with the generation 0 asks again.
func TestWhatTagsFollowIsImportedOnce(t *testing.T) {
	t.Parallel()
	s, _ := newImports(t, imageapi.Options{Registry: ownRegistry})
	imports := s.all.TagImports
	pinned := repository + "@" + digestOf(9)
	s.knownAs(repository, "old", digestOf(5))
	app := stream("app", "", "prod", "DockerImage/"+repository+":v1", "same", "DockerImage/"+repository+":v1", "known", "DockerImage/"+repository+":old", "pinned", "DockerImage/"+pinned,
		"own", "DockerImage/"+ownRegistry+"/team/other:v1")
	named := specTag("name", "DockerImage/"+repository+":v7")
	named.Reference = true
	app.Spec.Tags = append(app.Spec.Tags, *named, *specTag("latest", "ImageStreamTag/prod"))
	s.mustCreateStream(app)
	expect := func(what, want string, of ...string) {
		t.Helper()
		if got := toImport(t, imports); got != want {
			t.Errorf("%s, to be imported are %q, want %q", what, got, want)
		}
		for i := 0; i < len(of); i += 2 {
			if got := told(s.stream("app"), of[i]); got != of[i+1] {
				t.Errorf("%s, %s is %q, want %q", what, of[i], got, of[i+1])
			}
		}
	}
	expect("at first", strings.Join([]string{repository + ":old", repository + ":v1", pinned}, " "), "prod", "1", "known", "1 0:5", "pinned", "1 0:9")

	failed := apierrors.NewInternalError(errors.New("connection refused by registry.example.com"))
	for range 2 {
		if err := imports.Imported(t.Context(), parsed(t, repository+":v1"), failed); err != nil {
			t.Fatal(err)
		}
	}
	expect("after a failure", repository+":old "+pinned, "prod", "1 1:ImportSuccess=False:InternalError", "same", "1 1:ImportSuccess=False:InternalError", "known", "1 0:5")

	s.knownAs(repository, "v1", digestOf(1))
	for _, ref := range []string{repository + ":v1", repository + ":old", pinned} {
		if err := imports.Imported(t.Context(), parsed(t, ref), nil); err != nil {
			t.Fatal(err)
		}
	}
	expect("after all", "", "prod", "1 1:1", "same", "1 1:1", "known", "1 1:5", "pinned", "1 1:9", "latest", "1 1:1")
	before := s.stream("app").ResourceVersion
	if err := imports.Imported(t.Context(), parsed(t, repository+":v1"), failed); err != nil || s.stream("app").ResourceVersion != before {
		t.Errorf("what is settled is written again: %v", err)
	}

	moved, err := s.tags.Get(inNamespace(tags.Namespace, s.asUser), tags.Name(parsed(t, repository+":v1")), &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tags.Lead(moved.(*imagev1.ImageTag), parsed(t, repository+":v1"), digestOf(2), metav1.Now())
	if _, err := s.update(s.status, moved.(*imagev1.ImageTag)); err != nil {
		t.Fatal(err)
	}
	expect("after the registry's tag moved", "", "prod", "1 1:2")
	again, zero := s.stream("app"), int64(0)
	again.Spec.Tags[0].Generation = &zero
	if _, err := s.updateStream(s.streams, again); err != nil {
		t.Fatal(err)
	}
	expect("asked again", repository+":v1", "prod", "2 1:2")
	if err := imports.Imported(t.Context(), parsed(t, repository+":v1"), nil); err != nil {
		t.Fatal(err)
	}
	expect("and done", "", "prod", "2 2:2", "same", "1 1:2")
	if got := history(s.stream("app"), "prod"); got != "2 1" {
		t.Errorf("the history of prod is %q", got)
	}
}

// What an imagestreamimport has imported, or tried to, is not imported again.
func TestImportsAreNotRepeated(t *testing.T) {
	t.Parallel()
	s, _ := newImports(t, imageapi.Options{}, "v1")
	if _, err := s.imported(importing("app", "prod", repository+":v1", "late", repository+":v2")); err != nil {
		t.Fatal(err)
	}
	if got := toImport(t, s.all.TagImports); got != "" {
		t.Errorf("imported again would be %q", got)
	}
}

// What the configuration does not allow is not imported, and says so; what is known of it all the
// same is shown.
func TestTagsOfRegistriesThatAreNotAllowed(t *testing.T) {
	t.Parallel()
	s, _ := newImports(t, imageapi.Options{AllowedRegistries: []configv1.RegistryLocation{{DomainName: "good.example.com"}, {DomainName: "plain.example.com", Insecure: true}}})
	imports := s.all.TagImports
	s.knownAs(repository, "old", digestOf(5))
	app := stream("app", "", "good", "DockerImage/good.example.com/app:v1", "bad", "DockerImage/"+repository+":v1", "known", "DockerImage/"+repository+":old", "secure", "DockerImage/plain.example.com/app:v1")
	plain := specTag("plain", "DockerImage/plain.example.com/app:v1")
	plain.ImportPolicy.Insecure = true
	app.Spec.Tags = append(app.Spec.Tags, *plain)
	for i := range app.Spec.Tags {
		app.Spec.Tags[i].ImportPolicy.Scheduled = app.Spec.Tags[i].Name != "good"
	}
	s.mustCreateStream(app)
	for range 2 {
		if got, want := toImport(t, imports), "good.example.com/app:v1 plain.example.com/app:v1"; got != want {
			t.Errorf("to be imported are %q, want %q", got, want)
		}
	}
	if err := imports.Imported(t.Context(), parsed(t, "plain.example.com/app:v1"), apierrors.NewTimeoutError("no answer", 0)); err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]string{"good": "1", "bad": "1 1:ImportSuccess=False:Forbidden", "known": "1 1:5", "secure": "1 1:ImportSuccess=False:Forbidden", "plain": "1 1:ImportSuccess=False:Timeout"} {
		if got := told(s.stream("app"), tag); got != want {
			t.Errorf("%s is %q, want %q", tag, got, want)
		}
	}
	var scheduled []string
	if err := imports.Scheduled(t.Context(), func(ref reference.Reference) error {
		scheduled = append(scheduled, ref.String())
		return nil
	}); err != nil || !slices.Equal(scheduled, []string{"plain.example.com/app:v1"}) {
		t.Errorf("scheduled are %q, %v", scheduled, err)
	}
}

// A watch tells what is to be imported of streams that are written later, in any namespace.
func TestTagImportsAreWatched(t *testing.T) {
	t.Parallel()
	s, _ := newImports(t, imageapi.Options{})
	imports := s.all.TagImports
	s.mustCreateStream(stream("before", "", "a", "DockerImage/"+repository+":v1"))
	version, err := imports.Each(t.Context(), func([]reference.Reference) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s.mustCreateStream(stream("after", "", "a", "DockerImage/"+repository+":v2"))
	var got []reference.Reference
	version, err = imports.Watch(ctx, version, func(refs []reference.Reference) error {
		got = append(got, refs...)
		stop()
		return nil
	})
	if err != nil || len(got) != 1 || got[0] != parsed(t, repository+":v2") || version != s.stream("after").ResourceVersion {
		t.Errorf("told of %v until %s, %v", got, version, err)
	}
}
