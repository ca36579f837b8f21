package imageapi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// A list of what is used looks at that alone.
func TestUsedReadsNothingElse(t *testing.T) {
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	for i := range 50 {
		s.mustCreate(t, plain(fmt.Sprintf("image-%02d", i), ""))
	}
	p.use("image-07", "registry.example.com/image-03:1", "never-imported")
	p.asked.Store(0)
	if got := s.selected(t, "used=true"); got != "image-03 image-07" {
		t.Errorf("selected %q", got)
	}
	if n := p.asked.Load(); n > 3 {
		t.Errorf("looked at %d images to find two of fifty", n)
	}
}

// A list of what runs, or of what is unknown, tells how much runs that is not imported.
func TestListsTellOfWhatIsNotImported(t *testing.T) {
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.mustCreate(t, plain("stored", ""))
	index := plain("index", "")
	index.DockerImageManifests = []imagev1.ImageManifest{{Digest: digestOf(1), MediaType: manifest.MediaTypeOCIManifest, OS: "linux", Architecture: "amd64"}}
	s.mustCreate(t, index)
	warnings := func(selector string) string {
		t.Helper()
		var told recorded
		if _, err := s.images.List(warning.WithWarningRecorder(requestContext(), &told), selecting(selector)); err != nil {
			t.Fatal(err)
		}
		return strings.Join(told, "; ")
	}
	asking := []string{"used=true", "used-by=prod", "used-by=prod/team", "used!=false", "signatures.verified=Unknown", "signatures.verified!=NoPolicy"}
	p.use("stored", digestOf(1)) // the index vouches for what it lists
	for _, selector := range asking {
		if got := warnings(selector); got != "" {
			t.Errorf("%s warns of %q where all is imported", selector, got)
		}
	}
	for n, says := range map[int]string{1: "1 image that runs is not imported", 2: "2 images that run are not imported"} {
		p.use([]string{"stored", "ghost", "lost"}[:n+1]...)
		for _, selector := range asking {
			if got := warnings(selector); !strings.HasPrefix(got, says) || !strings.Contains(got, "kubectl get clusterpods --field-selector reason=NotImported") {
				t.Errorf("%s warns of %q, want %q", selector, got, says)
			}
		}
		for _, selector := range []string{"used=false", "used-by=test", "used=false,signatures.verified=Unknown", "signatures.verified=NoPolicy", "mediaType="} {
			if got := warnings(selector); got != "" {
				t.Errorf("%s warns of %q", selector, got)
			}
		}
	}
}

func TestUsedInPages(t *testing.T) {
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.mustCreate(t, plain(name, ""))
	}
	p.use("e", "a", "missing", "c")
	options := selecting("used=true")
	options.Limit = 2
	page := func() (names []string, list *imagev1.ImageList) {
		t.Helper()
		obj, err := s.images.List(requestContext(), options)
		if err != nil {
			t.Fatal(err)
		}
		list = obj.(*imagev1.ImageList)
		for _, image := range list.Items {
			names = append(names, image.Name)
		}
		return names, list
	}
	first, list := page()
	if !slices.Equal(first, []string{"a", "c"}) || list.Continue == "" {
		t.Fatalf("the first page has %q and continues with %q", first, list.Continue)
	}
	// The second page shows the state of the first.
	changed := s.get(t, "e").DeepCopy()
	changed.Labels = map[string]string{"changed": "later"}
	if _, err := s.update(changed); err != nil {
		t.Fatal(err)
	}
	options.Continue = list.Continue
	second, next := page()
	if !slices.Equal(second, []string{"e"}) || next.Continue != "" || next.ResourceVersion != list.ResourceVersion || next.Items[0].Labels != nil {
		t.Errorf("the second page has %q with labels %v at %s, continues with %q; the first was at %s", second, next.Items[0].Labels, next.ResourceVersion, next.Continue, list.ResourceVersion)
	}
	options.Continue = "made up"
	if _, err := s.images.List(requestContext(), options); !apierrors.IsBadRequest(err) {
		t.Errorf("with a made-up token: %v", err)
	}

	// A list of nothing has a version to watch from, too, and past states can be read.
	p.use()
	options = selecting("used=true")
	if none, list := page(); len(none) != 0 || list.ResourceVersion == "" {
		t.Errorf("%q at %q", none, list.ResourceVersion)
	}
	p.use("e")
	options.ResourceVersion, options.ResourceVersionMatch = list.ResourceVersion, metav1.ResourceVersionMatchExact
	if then, list := page(); !slices.Equal(then, []string{"e"}) || list.Items[0].Labels != nil || list.ResourceVersion != options.ResourceVersion {
		t.Errorf("as it was: %q with labels %v at %s", then, list.Items[0].Labels, list.ResourceVersion)
	}
}

// A page of large images that pods use ends before its limit. Read one by one, they would take the
// room of all lists, and the next would wait for those before it.
func TestAttackUsedImagesAreLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	const large, fit = 10, 8 // in a page of 16 MiB
	var names []string
	for i := range large {
		raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[],"annotations":{"text":"%s","number":"%d"}}`, strings.Repeat("x", 2<<20), i)
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: manifest.Digest([]byte(raw))}, DockerImageReference: "registry.example.com/a:1", DockerImageManifest: raw}
		s.mustCreate(t, image)
		names = append(names, image.Name)
	}
	slices.Sort(names)
	p.use(names...)
	list := func(options *internalversion.ListOptions) (got []string, next string) {
		t.Helper()
		ctx, end := context.WithCancel(request.WithRequestInfo(requestContext(), &request.RequestInfo{}))
		defer end()
		obj, err := s.images.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range obj.(*imagev1.ImageList).Items {
			got = append(got, image.Name)
		}
		return got, obj.(*imagev1.ImageList).Continue
	}
	options := selecting("used=true")
	options.Limit = 500
	first, next := list(options)
	if len(first) != fit || next == "" {
		t.Fatalf("a page has %d images of 2 MiB, want %d", len(first), fit)
	}
	options.Continue = next
	if second, next := list(options); !slices.Equal(slices.Concat(first, second), names) || next != "" {
		t.Errorf("the pages have %d and %d images of %d", len(first), len(second), large)
	}
}

// A pod on a node whose platform is known runs the image that the index lists for it, and not the
// others.
func TestImagesOfAnIndexOnANode(t *testing.T) {
	index := bareImage(t, "oci-index.json", "")
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	s.mustCreate(t, index)
	listed := s.get(t, index.Name).DockerImageManifests
	platforms := map[string]string{} // by digest
	for _, m := range listed {
		image := plainImage()
		image.Name, image.DockerImageReference = m.Digest, "registry.example.com/acme/web@"+m.Digest
		s.mustCreate(t, image)
		if m.OS != "" {
			platforms[m.Digest] = m.OS + "/" + m.Architecture
		}
	}
	for _, on := range []string{"linux/amd64", "linux/arm64", "plan9/mips"} {
		p.on = map[string]string{index.Name: on}
		p.use(index.Name)
		counted := 0
		for digest, platform := range platforms {
			want := "0"
			if platform == on {
				want = "1"
				counted++
			}
			if got := s.cell(t, s.get(t, digest), "Pods"); got != want {
				t.Errorf("a pod on %s: PODS of the image for %s is %v, want %s", on, platform, got, want)
			}
		}
		if (counted == 0) != (on == "plan9/mips") {
			t.Errorf("%d images are for %s: this proves nothing", counted, on)
		}
		if got := s.cell(t, s.get(t, index.Name), "Pods"); got != "1" {
			t.Errorf("PODS of the index is %v", got)
		}
	}
}

// Pods that run an index run one of its images, whichever came first: the pod,
// the index or the image.
func TestImagesOfAUsedIndex(t *testing.T) {
	index := bareImage(t, "oci-index.json", "")
	m, err := manifest.Of(index)
	if err != nil {
		t.Fatal(err)
	}
	child := m.ImageChildren()[0].Digest
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	used := func(when string, want ...string) {
		t.Helper()
		obj, err := s.images.List(requestContext(), selecting("used=true"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, image := range obj.(*imagev1.ImageList).Items {
			names = append(names, image.Name)
		}
		slices.Sort(want)
		if !slices.Equal(names, want) {
			t.Errorf("%s: used are %q, want %q", when, names, want)
		}
		obj, err = s.images.List(requestContext(), &internalversion.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range obj.(*imagev1.ImageList).Items {
			pods := "0"
			if slices.Contains(want, image.Name) {
				pods = "1"
			}
			if got := s.cell(t, &image, "Pods"); got != pods {
				t.Errorf("%s: column PODS of %s is %v, want %s", when, image.Name, got, pods)
			}
		}
	}
	remove := func(name string) {
		t.Helper()
		s.mustAllowDelete(t, name, "used")
		if _, _, err := s.images.Delete(requestContext(), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	image := plainImage()
	image.Name, image.DockerImageReference = child, "registry.example.com/acme/web@"+child
	s.mustCreate(t, image)
	s.mustCreate(t, plain("idle", ""))
	p.use(index.Name)
	used("the pod runs an index that is not there")
	s.mustCreate(t, index)
	used("the index is created", index.Name, child)
	p.use()
	used("the pod is gone")
	p.use(index.Name)
	used("another pod runs it", index.Name, child)
	remove(index.Name)
	used("the index is deleted")
	s.mustCreate(t, index)
	used("the index is back", index.Name, child)
	p.use(index.Name, child)
	if got := s.cell(t, s.get(t, child), "Pods"); got != "2" {
		t.Errorf("a pod runs the index and another the image: PODS is %v", got)
	}
}

// Pods whose runtime tells the digest of a platform use the index that lists it, too, whichever
// came first, and no other platform.
func TestIndexOfAUsedPlatform(t *testing.T) {
	index := bareImage(t, "oci-index.json", "")
	m, err := manifest.Of(index)
	if err != nil {
		t.Fatal(err)
	}
	children := m.ImageChildren()
	child, other := children[0].Digest, children[1].Digest
	p := &pods{synced: true}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	create := func(digest string) {
		image := plainImage()
		image.Name, image.DockerImageReference = digest, "registry.example.com/acme/web@"+digest
		s.mustCreate(t, image)
	}
	used := func(when string, want ...string) {
		t.Helper()
		slices.Sort(want)
		for _, selector := range []string{"used=true", "used-by=prod/team"} {
			obj, err := s.images.List(requestContext(), selecting(selector))
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, image := range obj.(*imagev1.ImageList).Items {
				names = append(names, image.Name)
				if got := s.cell(t, &image, "Pods"); got != "1" {
					t.Errorf("%s: PODS of %s is %v", when, image.Name, got)
				}
			}
			if !slices.Equal(names, want) {
				t.Errorf("%s: %s has %q, want %q", when, selector, names, want)
			}
		}
	}
	create(other)
	p.use(child)
	used("nothing that the pod runs is there")
	s.mustCreate(t, index)
	used("the index comes after the pod", index.Name)
	create(child)
	used("the platform is there, too", index.Name, child)
	p.use()
	used("the pod is gone")
	p.use(child)
	used("another runs it", index.Name, child)
	s.mustAllowDelete(t, index.Name, "used")
	if _, _, err := s.images.Delete(requestContext(), index.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("the index is deleted", child)
	obj, err := s.images.List(requestContext(), selecting("lists="+child))
	if err != nil || len(obj.(*imagev1.ImageList).Items) != 0 {
		t.Errorf("indexes that list it: %v, %v", obj, err)
	}
	s.mustCreate(t, index)
	used("the index is back", index.Name, child)
	if obj, err = s.images.List(requestContext(), selecting("lists="+other)); err != nil || len(obj.(*imagev1.ImageList).Items) != 1 {
		t.Errorf("indexes that list the other: %v, %v", obj, err)
	}
}

// A damaged index does not make what it lists unused: what is not used is what people delete.
func TestImagesOfADamagedIndexAreNotUnused(t *testing.T) {
	t.Parallel()
	index := bareImage(t, "oci-index.json", "")
	m, err := manifest.Of(index)
	if err != nil {
		t.Fatal(err)
	}
	child := m.ImageChildren()[0].Digest
	d, err := db.Open(db.Options{Dir: t.TempDir()}) // not checked at the end: it is damaged
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	p := &pods{synced: true}
	s := newStoragesOn(t, d, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	image := plainImage()
	image.Name, image.DockerImageReference = child, "registry.example.com/acme/web@"+child
	s.mustCreate(t, image)
	s.mustCreate(t, index)
	dbtest.Damage(t, d, "/image.openshift.io/images/"+index.Name)
	p.use(index.Name)
	if got := s.cell(t, s.get(t, child), "Pods"); got != "Unknown" {
		t.Errorf("PODS is %v", got)
	}
	options := selecting("used=false")
	options.FieldSelector = fields.AndSelectors(options.FieldSelector, fields.OneTermEqualSelector("metadata.name", child))
	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, options); err != nil {
		t.Fatal(err)
	}
	s.get(t, child) // is there
}
