package imageapi_test

import (
	"cmp"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// needed is what is needed of all streams of a namespace, as stream=numbers of digests, read in
// pages.
func (s *tagStorages) needed(namespace string, limit int64) (all []string, err error) {
	options := &internalversion.ListOptions{Limit: limit}
	for {
		list, err := s.all.Needed.List(inNamespace(namespace, s.asUser), options)
		if err != nil {
			return nil, err
		}
		for _, one := range list.Items {
			var numbers []string
			for _, container := range one.Spec.Template.Spec.Containers {
				_, digest, _ := strings.Cut(container.Image, "@sha256:")
				numbers = append(numbers, strings.TrimLeft(digest, "0"))
			}
			all = append(all, strings.Replace(one.Name, ".", "/", 1)+"="+strings.Join(numbers, ","))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

func (s *tagStorages) wantNeeded(namespace, want string) {
	s.t.Helper()
	for _, limit := range []int64{0, 1} {
		got, err := s.needed(namespace, limit)
		if err != nil || strings.Join(got, " ") != want {
			s.t.Errorf("with limit %d needed are %v, %v, want %s", limit, got, err, want)
		}
	}
}

// What a tag leads to now and what pods use is needed, in each stream whose history has it; an
// index is if what it lists is used.
func TestNeededImages(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil, 2: {21}, 21: nil, 3: nil, 4: nil, 5: nil})
	tag := tags.New(s.ref)
	for n := 1; n <= 5; n++ {
		tag = s.lead(tag, digestOf(n), "push")
	}
	s.mustCreateStream(stream("app", repository))
	s.mustCreateStream(stream("other", "", "prod", "DockerImage/"+s.ref.String()))
	s.mustCreateStream(stream("empty", ""))
	if _, err := s.createStream("another", stream("app", repository)); err != nil {
		t.Fatal(err)
	}
	s.wantNeeded("", "another/app=5 team/app=5 team/other=5")
	p.use(digestOf(3), digestOf(21))
	s.wantNeeded("", "another/app=2,3,5 team/app=2,3,5 team/other=5")
	s.wantNeeded(imagestream.InUseNamespace, "another/app=2,3,5 team/app=2,3,5 team/other=5")
	s.wantNeeded("team", "")
	p.use()
	p.need(digestOf(3), digestOf(21)) // a Deployment without pods
	s.wantNeeded("", "another/app=2,3,5 team/app=2,3,5 team/other=5")

	one, err := s.all.Needed.Get(inNamespace(imagestream.InUseNamespace, s.asUser), "team.app")
	if err != nil || one.UID != s.stream("app").UID || *one.Spec.Replicas != 0 || one.Spec.Selector != nil {
		t.Fatalf("%+v, %v", one, err)
	}
	if got := one.Spec.Template.Spec.Containers[2]; got.Name != "image-2" || got.Image != "tidewaiter.invalid/team/app@"+digestOf(5) {
		t.Errorf("%+v", got)
	}
	if _, err := s.all.Needed.List(inNamespace("team", s.asUser), &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("status.replicas", "0")}); !apierrors.IsBadRequest(err) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"team.empty", "team.never", "app"} {
		if _, err := s.all.Needed.Get(inNamespace(imagestream.InUseNamespace, s.asUser), name); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.all.Needed.Get(inNamespace("team", s.asUser), "app"); !apierrors.IsNotFound(err) {
		t.Errorf("a user's namespace has a controller: %v", err)
	}
	for selector, want := range map[string]int{"metadata.name=team.app": 1, "metadata.name=app": 0, "metadata.namespace=" + imagestream.InUseNamespace: 3, "metadata.namespace=team": 0} {
		list, err := s.all.Needed.List(inNamespace("", s.asUser), &internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(selector)})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s: %v, %v, want %d", selector, list, err, want)
		}
	}
}

// A pod that does not tell what it runs, or tells a digest that no image has, may run what its tag
// has led to since it was created. Who prunes would delete that in the registry first, where the
// server cannot refuse it. So it is in the list, and stays in the histories if somebody takes it
// out.
func TestNeededIsWhatPodsMayUse(t *testing.T) {
	t.Parallel()
	for what, key := range map[string]string{"a pod that has not started": "", "a pod of an image that is not imported": digestOf(77)} {
		p := &pods{synced: true, since: 1}
		s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
		s.withImages(map[int][]int{1: nil, 2: {21}, 21: nil, 3: nil, 4: nil})
		tag := tags.New(s.ref)
		for n := 1; n <= 4; n++ {
			tag = s.lead(tag, digestOf(n), "push")
		}
		s.mustCreateStream(stream("app", repository))
		s.wantNeeded("", "team/app=4")
		p.naming = s.ref.String()
		p.use(cmp.Or(key, p.naming))
		// as oc adm prune images goes on: it lists, takes out of the history what is not in the list,
		// and deletes in the registry what has left the history
		s.wantNeeded("", "team/app=1,2,3,4")
		got, err := s.updateStream(s.streamStatus, leaveOut(s.stream("app"), 3, 2, 1))
		if err != nil || history(got, s.ref.Tag) != "4 3 2 1" {
			t.Errorf("%s: what stays is %s, %v", what, history(got, s.ref.Tag), err)
		}
		p.use()
		s.wantNeeded("", "team/app=4")
	}
}

// What a tag of another stream leads to stays in the histories of a stream. So it is needed there,
// too: who prunes would take the item for gone, and delete what the stream has of it in the
// registry, which refuses that for what the history has (405).
func TestNeededIsWhatStays(t *testing.T) {
	t.Parallel()
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: &pods{synced: true}}})
	s.withImages(map[int][]int{1: nil, 2: nil, 3: nil, 4: nil})
	tag := tags.New(s.ref)
	for n := 1; n <= 4; n++ {
		tag = s.lead(tag, digestOf(n), "push")
	}
	s.mustCreateStream(stream("app", repository))
	if _, err := s.createStream("prod", stream("pinned", "", "live", "DockerImage/"+repository+"@"+digestOf(2))); err != nil {
		t.Fatal(err)
	}
	s.wantNeeded("", "prod/pinned=2 team/app=2,4")
	one, err := s.all.Needed.Get(inNamespace(imagestream.InUseNamespace, s.asUser), "team.app")
	if err != nil || len(one.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("%+v, %v", one, err)
	}
	got, err := s.updateStream(s.streamStatus, leaveOut(s.stream("app"), 3, 2, 1))
	if err != nil || history(got, s.ref.Tag) != "4 2" {
		t.Errorf("what stays is %s, %v", history(got, s.ref.Tag), err)
	}
	s.wantNeeded("", "prod/pinned=2 team/app=2,4")
}

// An image that an index lists stays as long as the index does: OpenShift's registry refuses to
// delete it from a repository that has the index (405), by which oc adm prune images fails. When
// the index is gone, the image goes.
func TestNeededIsWhatIndexesList(t *testing.T) {
	t.Parallel()
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: &pods{synced: true}}})
	s.withImages(map[int][]int{1: nil, 2: nil, 3: nil, 4: {1}, 5: {2}}) // index 5 is in no history
	platform := tags.New(s.ref)
	for n := 1; n <= 3; n++ {
		platform = s.lead(platform, digestOf(n), "push")
	}
	other := s.ref
	other.Tag = "all-platforms"
	index := s.lead(tags.New(other), digestOf(4), "push")
	s.mustCreateStream(stream("app", repository))
	s.wantNeeded("", "team/app=1,3,4")

	s.lead(index, digestOf(3), "push") // a client may keep old indexes
	s.wantNeeded("", "team/app=1,3")
	if got, err := s.updateStream(s.streamStatus, leaveOut(s.stream("app"), 4)); err != nil || history(got, other.Tag) != "3" {
		t.Errorf("%v, %v", got, err)
	}
	s.wantNeeded("", "team/app=3")
}

// While it is unknown what pods use, lists of all needed images fail. Lists of users' namespaces do
// not: oc status reads them.
func TestNeededIsUnknown(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true, partly: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.lead(tags.New(s.ref), digestOf(1), "push")
	s.mustCreateStream(stream("app", repository))
	refused := func(says string) { // to who reads all namespaces
		t.Helper()
		s.wantNeeded("team", "")
		for _, namespace := range []string{"", imagestream.InUseNamespace} {
			if _, err := s.needed(namespace, 0); !apierrors.IsServiceUnavailable(err) || strings.Contains(err.Error(), says) != (namespace == "") {
				t.Errorf("in %q: %v", namespace, err)
			}
		}
		if _, err := s.all.Needed.Get(inNamespace(imagestream.InUseNamespace, s.asUser), "team.app"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%v", err)
		}
	}
	refused("pods are still being read")
	p.partly, p.doubts = false, []string{"the pods of cluster prod are those of 3d ago: no route"}
	refused("the pods of cluster prod are those of 3d ago: no route")
	p.doubts, p.needDoubts = nil, []string{"the cronjobs.batch of cluster prod are not known: forbidden"}
	refused("the cronjobs.batch of cluster prod are not known: forbidden")
	p.needDoubts = nil
	s.wantNeeded("", "team/app=1")
}

// What pods use of the registry whose image API this is, and what a tag of it leads to, must be in
// a stream: else who goes by streams would delete it there. In one namespace nobody deletes images.
func TestNeededImagesAreInStreams(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}, Registry: ownRegistry})
	own := reference.Reference{Host: ownRegistry, Repository: "team/app", Tag: "v1"}
	for n, reference := range map[int]string{1: own.WithDigest(digestOf(1)).String(), 2: own.WithDigest(digestOf(2)).String(), 3: repository + "@" + digestOf(3)} {
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(n)}, DockerImageReference: reference}
		if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.ref = own
	refused := func(says ...string) {
		t.Helper()
		_, err := s.needed("", 0)
		for _, want := range says {
			if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want 409 with %q", err, want)
			}
		}
		if _, err := s.needed("team", 0); err != nil {
			t.Errorf("in a namespace: %v", err)
		}
	}
	p.use(digestOf(3)) // is elsewhere
	s.wantNeeded("", "")
	p.use(digestOf(2), digestOf(3))
	refused("oc tag --source=docker "+ownRegistry+"/team/app@"+digestOf(2)+" team/app:in-use", "(prod, prod/team)")
	s.mustCreateStream(stream("app", "", "in-use", "DockerImage/"+ownRegistry+"/team/app@"+digestOf(2)))
	s.wantNeeded("", "team/app=2")

	tag := s.lead(tags.New(own), digestOf(1), "webhook")
	s.wantNeeded("", "team/app=1,2")
	if _, _, err := s.streams.Delete(inNamespace("team", s.asUser), "app", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.use()
	s.wantNeeded("", "")
	tag.ResourceVersion, tag.UID = "", ""
	s.lead(tag, digestOf(2), "sweep") // nobody has told of a push
	refused("the tag "+own.String()+" leads to an image", "Create the image stream team/app")
	s.mustCreateStream(stream("app", ""))
	s.wantNeeded("", "team/app=2")
}
