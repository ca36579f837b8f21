package imageapi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// allowDelete annotates an image for its deletion.
func allowDelete(images rest.StandardStorage, name, words string) error {
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		image := old.DeepCopyObject().(*imagev1.Image)
		if image.Annotations == nil {
			image.Annotations = map[string]string{}
		}
		image.Annotations[annotation.AllowDelete] = words
		return image, nil
	})
	_, _, err := images.Update(requestContext(), name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

func (s storages) mustAllowDelete(t testing.TB, name, words string) {
	t.Helper()
	if err := allowDelete(s.images, name, words); err != nil {
		t.Fatal(err)
	}
}

func deleteImage(images rest.StandardStorage, name string, dryRun ...string) error {
	_, _, err := images.Delete(requestContext(), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: dryRun})
	return err
}

// withImages stores images of digests, each without content, and indexes that list such.
func (s *tagStorages) withImages(lists map[int][]int) {
	s.t.Helper()
	for n, children := range lists {
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(n)}, DockerImageReference: repository + "@" + digestOf(n)}
		for _, child := range children {
			image.DockerImageManifests = append(image.DockerImageManifests, imagev1.ImageManifest{Digest: digestOf(child), MediaType: "application/vnd.oci.image.manifest.v1+json", Architecture: "amd64", OS: "linux"})
		}
		if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// wantKept fails unless an image cannot be deleted, also not by a dry run, with this in the
// message, until the words allow it; then it is gone.
func wantKept(t *testing.T, images rest.StandardStorage, name, words string, says ...string) {
	t.Helper()
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
		err := deleteImage(images, name, dryRun...)
		if !apierrors.IsConflict(err) {
			t.Fatalf("%s: %v, want it kept (409)", name, err)
		}
		for _, want := range append(says, "kubectl annotate image "+name+" --overwrite tidewaiter.dev/allow-delete="+words) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	for _, other := range []string{"", "true", "maybe," + words[1:]} {
		if err := allowDelete(images, name, other); err != nil {
			t.Fatal(err)
		}
		if err := deleteImage(images, name); !apierrors.IsConflict(err) {
			t.Fatalf("%s, allowed by %q: %v", name, other, err)
		}
	}
	if err := allowDelete(images, name, " "+strings.ReplaceAll(words, ",", " , ")); err != nil {
		t.Fatal(err)
	}
	wantDeleted(t, images, name)
}

// wantDeleted fails unless an image can be deleted. A dry run leaves it.
func wantDeleted(t *testing.T, images rest.StandardStorage, name string) {
	t.Helper()
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		if err := deleteImage(images, name, dryRun...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if _, err := images.Get(requestContext(), name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%s is there: %v", name, err)
	}
}

// What a tag leads to now is kept: of a registry, or of a stream, also through indexes. What one
// has led to before goes.
func TestTaggedImagesAreKept(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.withImages(map[int][]int{1: nil, 2: {21, 22}, 21: nil, 22: {221}, 221: nil, 3: nil, 4: nil, 5: nil, 6: nil, 7: nil})
	tag := s.lead(tags.New(s.ref), digestOf(1), "import")
	s.mustCreateStream(stream("app", "", "prod", "DockerImage/"+repository+"@"+digestOf(4), "fixed", "DockerImage/"+repository+"@"+digestOf(3)))
	s.mustCreateStream(stream("old", "", "was", "ImageStreamImage/app@"+digestOf(3)))
	s.mustCreateStream(stream("before", "", "was", "DockerImage/"+s.ref.String(), "copy", "ImageStreamTag/was"))
	tag = s.lead(tag, digestOf(2), "import")
	app := s.stream("app")
	app.Spec.Tags[0].From.Name = s.ref.String() // no longer 4
	if _, err := s.updateStream(s.streams, app); err != nil {
		t.Fatal(err)
	}

	for _, n := range []int{1, 4, 5} { // nobody's, any longer
		wantDeleted(t, s.images, digestOf(n))
	}
	leads := "tags default/registry.example.com--team--app:v1, team/app:prod lead to "
	wantKept(t, s.images, digestOf(3), "tagged", "tags team/app:fixed, team/old:was lead to it")
	wantKept(t, s.images, digestOf(21), "tagged", leads+"index "+digestOf(2)+", which lists it")
	wantKept(t, s.images, digestOf(221), "tagged", leads+"index "+digestOf(2))
	wantKept(t, s.images, digestOf(2), "tagged", leads+"it")
	wantDeleted(t, s.images, digestOf(22)) // its index is gone

	tag = s.lead(tag, digestOf(6), "import")
	tag = s.lead(tag, "", "webhook") // the registry has it no longer
	wantDeleted(t, s.images, digestOf(6))
	s.lead(tag, digestOf(7), "import")
	for i := range 5 {
		s.mustCreateStream(stream(fmt.Sprint("s", i), "", "v1", "DockerImage/"+repository+"@"+digestOf(7)))
	}
	wantKept(t, s.images, digestOf(7), "tagged", "tags default/registry.example.com--team--app:v1, team/s0:v1, team/s1:v1 and more lead to it")
}

// Of an image that too many indexes list to look at, it is unknown whether a tag leads to it.
func TestImageOfManyIndexesIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	s := newTagStorages(t)
	s.withImages(map[int][]int{1: nil})
	for i := range 101 {
		s.withImages(map[int][]int{1000 + i: {1}})
	}
	wantKept(t, s.images, digestOf(1), "unknown", "it is unknown whether a tag leads to it: more than 100 indexes list it")
	s.withImages(map[int][]int{1: nil})
	if err := deleteImage(s.images, digestOf(1000)); err != nil {
		t.Fatal(err)
	}
	wantDeleted(t, s.images, digestOf(1))
}

// What pods use is kept, with the index that lists it and what it lists, and that of which it is
// unknown.
func TestUsedImagesAreKept(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil, 2: {21, 22}, 21: nil, 22: nil, 3: {31}, 31: nil, 4: nil, 5: nil, 6: nil})
	p.use(digestOf(1), digestOf(21), digestOf(3))
	p.using[digestOf(1)] = 7

	wantKept(t, s.images, digestOf(1), "used", "pods prod/team/pod-0, prod/team/pod-1, prod/team/pod-2 and more use it")
	if err := allowDelete(s.images, digestOf(2), "used"); err != nil {
		t.Fatal(err)
	}
	if err := deleteImage(s.images, digestOf(2), metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got := s.selected(s.images, "used=true"); !slices.Contains(got, digestOf(2)) {
		t.Errorf("after a dry run of a deletion used are %v", got)
	}
	if err := allowDelete(s.images, digestOf(2), ""); err != nil {
		t.Fatal(err)
	}
	wantKept(t, s.images, digestOf(2), "used", "pod prod/team/pod-0 uses it") // by its platform
	wantDeleted(t, s.images, digestOf(22))
	wantKept(t, s.images, digestOf(31), "used", "pod prod/team/pod-0 uses it") // by its index
	p.use()
	wantDeleted(t, s.images, digestOf(21))

	p.use(digestOf(4))
	p.doubts = []string{"the pods of cluster prod are those of 3d ago: no \u001b[31mroute"}
	wantKept(t, s.images, digestOf(4), "unknown,used", "pod prod/team/pod-0 uses it", "it is unknown whether pods use it: the pods of cluster prod are those of 3d ago: no \ufffd[31mroute")
	wantKept(t, s.images, digestOf(5), "unknown", "3d ago")
	p.doubts, p.partly = nil, true
	wantKept(t, s.images, digestOf(6), "unknown", "pods are still being read")
	p.partly = false
	wantDeleted(t, s.images, digestOf(3))
}

// What workloads need is kept though no pod runs, by its platform and by its index, too. While it
// is unknown what they need, all is. It is not used.
func TestNeededImagesAreKept(t *testing.T) {
	t.Parallel()
	p := &pods{synced: true}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil, 2: {21, 22}, 21: nil, 22: nil, 3: {31}, 31: nil, 4: nil, 5: nil})
	p.need(digestOf(1), digestOf(21), digestOf(3))
	p.needing[digestOf(1)] = 7
	if got := s.selected(s.images, "used=true"); len(got) != 0 {
		t.Errorf("used are %v", got)
	}
	wantKept(t, s.images, digestOf(1), "needed", "workloads prod/team/deployments/app-0, prod/team/deployments/app-1, prod/team/deployments/app-2 and more need it")
	wantKept(t, s.images, digestOf(2), "needed", "workload prod/team/deployments/app-0 needs it")
	wantDeleted(t, s.images, digestOf(22))
	wantKept(t, s.images, digestOf(31), "needed", "workload prod/team/deployments/app-0 needs it")
	p.need()
	wantDeleted(t, s.images, digestOf(21))

	p.need(digestOf(4))
	p.needDoubts = []string{"the cronjobs.batch of cluster prod are not known: no \u001b[31mright"}
	wantKept(t, s.images, digestOf(4), "needed,workloads", "it is unknown whether workloads need it: the cronjobs.batch of cluster prod are not known: no \ufffd[31mright")
	wantKept(t, s.images, digestOf(5), "workloads", "cronjobs.batch")
	p.needDoubts = nil
	wantDeleted(t, s.images, digestOf(3))
}

// A tag that comes to lead to an image while that is being deleted keeps it: the image has changed
// with it, so it is asked again.
func TestTaggedWhileDeleted(t *testing.T) {
	t.Parallel()
	p := &asked{pods: &pods{synced: true}}
	s := newTagStoragesOf(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.withImages(map[int][]int{1: nil})
	p.once = func() {
		s.lead(tags.New(s.ref), digestOf(1), "webhook")
		if err := allowDelete(s.images, digestOf(1), "none"); err != nil {
			// as an importer writes that the tag leads there
			t.Error(err)
		}
	}
	if err := deleteImage(s.images, digestOf(1)); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "app:v1 leads to it") {
		t.Errorf("%v", err)
	}
}

// asked does something after the first look at what keeps an image.
type asked struct {
	*pods
	once func()
	done sync.Once
}

func (a *asked) StaleReasons() []string {
	a.done.Do(a.once)
	return nil
}

// A precondition that does not hold is told before anything else.
func TestPreconditionOfDelete(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.withImages(map[int][]int{1: nil})
	s.lead(tags.New(s.ref), digestOf(1), "import")
	_, _, err := s.images.Delete(requestContext(), digestOf(1), rest.ValidateAllObjectFunc, metav1.NewPreconditionDeleteOptions("another"))
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "UID") {
		t.Errorf("%v", err)
	}
}

// A collection is judged image by image: what may go goes, and then it is said what was kept.
func TestCollectionKeepsWhatIsTagged(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	for n := 1; n <= 20; n++ {
		s.withImages(map[int][]int{n: nil})
		if n%2 == 0 {
			s.mustCreateStream(stream(fmt.Sprint("s", n), "", "v1", "DockerImage/"+repository+"@"+digestOf(n)))
		}
	}
	if err := allowDelete(s.images, digestOf(20), "tagged"); err != nil {
		t.Fatal(err)
	}
	left := func() (left []string) {
		obj, err := s.images.List(requestContext(), &internalversion.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range obj.(*imagev1.ImageList).Items {
			left = append(left, strings.TrimLeft(image.Name[7:], "0"))
		}
		return left
	}
	remove := func(dryRun ...string) error {
		_, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{DryRun: dryRun}, &internalversion.ListOptions{})
		return err
	}
	err := remove(metav1.DryRunAll)
	if !apierrors.IsConflict(err) || !strings.HasPrefix(err.Error(), "9 images are kept, and the others that are selected would be deleted: sha256:0") || strings.Count(err.Error(), ":v1 leads to it; ") != 5 || len(left()) != 20 {
		t.Errorf("a dry run: %v, and %d are left", err, len(left()))
	}
	err = remove()
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "the others that were selected are deleted") || !strings.Contains(err.Error(), "; and 4 more.") {
		t.Error(err)
	}
	if got, want := left(), strings.Fields("2 4 6 8 a c e 10 12"); !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	for n := 2; n < 20; n += 2 {
		if err := allowDelete(s.images, digestOf(n), "tagged,used,unknown"); err != nil {
			t.Fatal(err)
		}
	}
	if err := remove(); err != nil || len(left()) != 0 {
		t.Errorf("all allowed: %v, and %v are left", err, left())
	}
}
