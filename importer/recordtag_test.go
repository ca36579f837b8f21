package importer_test

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// history is what a tag is recorded to have led to, the newest first.
func history(t *testing.T, images *registrytest.Images, ref string) (digests []string, tag *imagev1.ImageTag) {
	t.Helper()
	tag, err := images.GetTag(t.Context(), tags.Name(parse(t, ref)), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range tag.Status.Items {
		digests = append(digests, item.Image)
	}
	return digests, tag
}

func stored(t *testing.T, images *registrytest.Images, name string) *imagev1.Image {
	t.Helper()
	image, err := images.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func deleteTag(t *testing.T, registry *registrytest.Registry, repository, tag string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodDelete, registry.URL+"/v2/"+repository+"/manifests/"+tag, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := registry.Server().Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatal(resp.Status)
	}
}

// A registry that hides what a credential may not read does not make known tags seem deleted when
// the credential is lost, expires or loses its rights: by no door that asks about them, and
// whatever the registry says it lacks. Once it shows anything of the repository a deletion counts
// again.
func TestWhatIsHiddenIsNotDeleted(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"basic", "bearer"} {
		for _, code := range []string{"NAME_UNKNOWN", "MANIFEST_UNKNOWN", "NOT_FOUND"} {
			for _, who := range []string{"somebody", "nobody"} {
				t.Run(scheme+" "+code+" "+who, func(t *testing.T) {
					t.Parallel()
					auth := with(scheme, func(a *registrytest.Auth) { a.Anonymous = true })
					registry, images := registrytest.New(t, registrytest.WithAuth(auth)), &registrytest.Images{}
					knows := newImporter(t, importer.Options{Keychain: secret})
					ref := registry.Host + "/team/app:v1"
					digest := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
					mustImport(t, knows, ref, images)
					asks := knows // a credential that has lost its rights
					if who == "nobody" {
						asks = newImporter(t, importer.Options{})
					}
					registry.Inject("/v2/.+", 0, registrytest.Status(http.StatusNotFound, code))
					doors := map[string]func() error{
						"import": func() error {
							_, err := asks.Import(t.Context(), parse(t, ref), images)
							return err
						},
						"refresh": func() error {
							_, _, err := asks.RefreshTag(t.Context(), parse(t, ref), images)
							return err
						},
						"resolve": func() error {
							digest, err := asks.Resolve(t.Context(), parse(t, ref))
							if err == nil && digest == "" {
								err = errors.New("absent")
							}
							return err
						},
						"list": func() error {
							_, _, err := asks.Tags(t.Context(), parse(t, ref).Bare())
							return err
						},
						"abandoned": func() error {
							gone, err := asks.Abandoned(t.Context(), images, parse(t, ref).Bare(), []string{digest})
							if len(gone) > 0 {
								t.Errorf("%s are gone", gone)
							}
							return err
						},
					}
					for door, ask := range doors {
						if err := ask(); (pull.ReasonOf(err) != pull.Unauthorized || !pull.IsHidden(err)) && door != "abandoned" {
							t.Errorf("%s: %v", door, err)
						}
						if led, _ := history(t, images, ref); !slices.Equal(led, []string{digest}) {
							t.Errorf("%s: the tag led to %q", door, led)
						}
					}
					// The list of tags, or another manifest, shows that the credential may read the repository.
					registry.Heal()
					registry.Push("team/app:v2", newImage(t, sample.Spec{Name: "two"}))
					registry.Inject("/manifests/v1", 0, registrytest.Status(http.StatusNotFound, code))
					if who == "nobody" && scheme == "basic" {
						registry.Inject("/v2/team/app/tags/list", 0, registrytest.Status(http.StatusOK, ""))
					} else {
						mustImport(t, asks, registry.Host+"/team/app:v2", images)
						registry.Inject("/tags/list", 0, registrytest.Status(http.StatusForbidden, "DENIED"))
					}
					if _, _, err := asks.RefreshTag(t.Context(), parse(t, ref), images); err != nil {
						t.Error(err)
					}
					if led, _ := history(t, images, ref); !slices.Equal(led, []string{"", digest}) {
						t.Errorf("a tag that is gone led to %q", led)
					}
				})
			}
		}
	}
}

// A repository that is gone as a whole is believed to be gone where the registry hides nothing: it
// asks nobody for credentials, or its token says that the repository may be read. What stands
// before a registry, and has nothing at all, says nothing.
func TestRepositoryThatIsGone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		auth  registrytest.Auth
		fault string
		code  string
		want  pull.Reason
	}{
		"open":               {registrytest.Auth{}, "/v2/.+", "NAME_UNKNOWN", ""},
		"open, gateway":      {registrytest.Auth{}, "/v2/", "", pull.Unexpected},
		"token with claims":  {with("bearer", func(a *registrytest.Auth) { a.Claims = true }), "/v2/.+", "NAME_UNKNOWN", ""},
		"token, gateway":     {with("bearer", func(a *registrytest.Auth) { a.Claims = true }), "/v2/", "", pull.Unexpected},
		"token without them": {with("bearer", nil), "/v2/.+", "NAME_UNKNOWN", pull.Unauthorized},
		"password":           {with("basic", nil), "/v2/.+", "NAME_UNKNOWN", pull.Unauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, images := registrytest.New(t, registrytest.WithAuth(tc.auth)), &registrytest.Images{}
			im := newImporter(t, importer.Options{Keychain: secret})
			ref := registry.Host + "/team/app:v1"
			digest := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
			mustImport(t, im, ref, images)
			registry.Inject(tc.fault, 0, registrytest.Status(http.StatusNotFound, tc.code))
			_, _, err := im.RefreshTag(t.Context(), parse(t, ref), images)
			want := []string{"", digest}
			if tc.want != "" {
				want = want[1:]
			}
			if led, _ := history(t, images, ref); pull.ReasonOf(err) != tc.want || !slices.Equal(led, want) {
				t.Errorf("the tag led to %q: %v", led, err)
			}
		})
	}
}

// After app:v1 was pushed again, only the new image is known by it; what it led to before is in its
// history.
func TestMovedTagLeavesTheOldImage(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	ref := registry.Host + "/team/app:v1"
	first := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
	mustImport(t, im, ref, images)
	second := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "two"}))
	mustImport(t, im, ref, images)

	if got := known(stored(t, images, first)); slices.Contains(got, ref) {
		t.Errorf("the old image claims %v", got)
	}
	if got := known(stored(t, images, second)); !slices.Equal(got, []string{ref}) {
		t.Errorf("the new image is known by %v", got)
	}
	if got, tag := history(t, images, ref); !slices.Equal(got, []string{second, first}) || tag.Annotations[tags.Cause] != "import" {
		t.Errorf("the history is %v, %v", got, tag.Annotations)
	}
	writes := len(images.TagWrites()) + len(images.Writes())
	mustImport(t, im, ref, images)
	if again := len(images.TagWrites()) + len(images.Writes()); again != writes {
		t.Errorf("what is known was written %d times more", again-writes)
	}
}

// An image in two repositories: a tag that moves in one leaves what the other says, and the image
// stays known in both.
func TestMovedTagOfAnImageInTwoRepositories(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	one := newImage(t, sample.Spec{Name: "one"})
	digest := registry.Push("team/app:v1", one)
	registry.Push("copy/app:v1", one)
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	mustImport(t, im, registry.Host+"/copy/app:v1", images)
	registry.Push("copy/app:v1", newImage(t, sample.Spec{Name: "two"}))
	mustImport(t, im, registry.Host+"/copy/app:v1", images)
	want := []string{registry.Host + "/team/app:v1", registry.Host + "/copy/app@" + digest}
	if got := known(stored(t, images, digest)); !slices.Equal(got, want) {
		t.Errorf("it is known by %v, want %v", got, want)
	}
}

// The import of a tag that was deleted fails, and takes the tag off the image.
func TestImportOfADeletedTag(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	ref := registry.Host + "/team/app:v1"
	digest := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
	mustImport(t, im, ref, images)
	deleteTag(t, registry, "team/app", "v1")
	_, err := im.Import(t.Context(), parse(t, ref), images)
	wantReason(t, err, pull.NotFound)
	image := stored(t, images, digest)
	if got := known(image); slices.Contains(got, ref) {
		t.Errorf("it is known by %v", got)
	}
	if annotation.Missing(image.Annotations)[parse(t, ref)] == "" {
		t.Errorf("it is not marked: %v", image.Annotations)
	}
	if got, tag := history(t, images, ref); !slices.Equal(got, []string{"", digest}) || tags.Failure(tag) != nil {
		t.Errorf("the history is %q, %+v", got, tag.Status.Conditions)
	}
	// It comes back.
	registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
	mustImport(t, im, ref, images)
	if got, _ := history(t, images, ref); !slices.Equal(got, []string{digest, "", digest}) {
		t.Errorf("the history is %q", got)
	}
	if image := stored(t, images, digest); image.Annotations[annotation.Gone] != "" || !slices.Contains(known(image), ref) {
		t.Errorf("after it came back: %v", image.Annotations)
	}
	// What never was leaves no trace.
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/team/app:never"), images)
	wantReason(t, err, pull.NotFound)
	if writes := images.TagWrites(); slices.ContainsFunc(writes, func(name string) bool { return strings.HasSuffix(name, ":never") }) {
		t.Errorf("written are %v", writes)
	}
}

// With the registry down nothing is forgotten; that it could not be asked, why and since when is
// known, and written once.
func TestUnreachableRegistryIsAnUnknown(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}})
	ref := registry.Host + "/team/app:v1"
	digest := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
	mustImport(t, im, ref, images)
	registry.Inject("/manifests/v1", 1000, registrytest.Status(http.StatusBadGateway, ""))
	for range 2 {
		if _, err := im.Import(t.Context(), parse(t, ref), images); err == nil {
			t.Fatal("the registry is not down")
		}
		got, tag := history(t, images, ref)
		if c := tags.Failure(tag); !slices.Equal(got, []string{digest}) || c == nil || c.Reason == "" || c.Message == "" || c.LastTransitionTime.IsZero() {
			t.Errorf("the history is %q, %+v", got, tag.Status.Conditions)
		}
		if n := len(images.TagWrites()); n != 2 {
			t.Errorf("%d writes", n)
		}
	}
	if got := known(stored(t, images, digest)); !slices.Contains(got, ref) {
		t.Errorf("it is known by %v", got)
	}
	registry.Heal()
	mustImport(t, im, ref, images)
	if _, tag := history(t, images, ref); tags.Failure(tag) != nil {
		t.Errorf("after it is back: %+v", tag.Status.Conditions)
	}
}

// A digest with 401 tags: each of them is known, and a second run writes nothing.
func TestManyTagsOfOneImage(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	image := newImage(t, sample.Spec{Name: "one"})
	const n = 401
	var digest string
	for i := range n {
		digest = registry.Push(fmt.Sprintf("team/app:%d", i), image)
	}
	writes := 0
	for run := range 2 {
		for i := range n {
			result := mustImport(t, im, fmt.Sprintf("%s/team/app:%d", registry.Host, i), images)
			if run > 0 && result.Images[0].Action != importer.Unchanged {
				t.Fatalf("tag %d is %s by a second run", i, result.Images[0].Action)
			}
		}
		if run == 0 {
			writes = len(images.Writes()) + len(images.TagWrites())
		}
	}
	if again := len(images.Writes()) + len(images.TagWrites()); again != writes {
		t.Errorf("the second run wrote %d times", again-writes)
	}
	for i := range n {
		if got, _ := history(t, images, fmt.Sprintf("%s/team/app:%d", registry.Host, i)); !slices.Equal(got, []string{digest}) {
			t.Fatalf("tag %d led to %v", i, got)
		}
	}

	// A tag that is deleted marks the image, whether or not the image shows that it is known by it.
	shown := known(stored(t, images, digest))
	i := 0
	for ; slices.Contains(shown, fmt.Sprintf("%s/team/app:%d", registry.Host, i)); i++ {
	}
	for _, ref := range []string{shown[0], fmt.Sprintf("%s/team/app:%d", registry.Host, i)} {
		deleteTag(t, registry, "team/app", parse(t, ref).Tag)
		if _, err := im.Import(t.Context(), parse(t, ref), images); pull.ReasonOf(err) != pull.NotFound {
			t.Fatalf("%s: %v", ref, err)
		}
		if _, marked := annotation.Missing(stored(t, images, digest).Annotations)[parse(t, ref)]; !marked {
			t.Errorf("it is not marked that %s is gone", ref)
		}
	}
}

// Writers who ask at different times and write in any order keep a history in the order of the
// registry: it ends with what the tag leads to, no item is there twice in a row, and only that
// image is known by the tag.
func TestTagThatMovesUnderWriters(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	ref := registry.Host + "/team/app:v1"
	const moves, writers = 60, 3
	order := map[string]int{}
	var pushed []string
	push := func(n int) {
		digest := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: fmt.Sprint(n)}))
		order[digest] = n
		pushed = append(pushed, digest)
	}
	push(0)
	done := make(chan struct{})
	var group sync.WaitGroup
	for range writers {
		im := newImporter(t, importer.Options{})
		group.Go(func() {
			for {
				if _, err := im.Import(t.Context(), parse(t, ref), images); err != nil && !errors.Is(err, t.Context().Err()) {
					t.Errorf("import: %v", err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for n := range moves {
		push(n + 1)
	}
	close(done)
	group.Wait()
	mustImport(t, newImporter(t, importer.Options{}), ref, images)
	got, _ := history(t, images, ref)
	if got[0] != pushed[moves] {
		t.Errorf("it leads to move %d, not to the last", order[got[0]])
	}
	for i := 1; i < len(got); i++ {
		if order[got[i]] >= order[got[i-1]] {
			t.Errorf("move %d is recorded before move %d", order[got[i-1]], order[got[i]])
		}
	}
	for _, name := range images.Names() {
		if claims := slices.Contains(known(stored(t, images, name)), ref); claims != (name == pushed[moves]) {
			t.Errorf("the image of move %d is known by the tag: %t", order[name], claims)
		}
	}
}

// What is pushed between the look at the registry and the write of what was seen is seen: the slow
// writer asks again.
func TestLateWriterAsksAgain(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	ref := registry.Host + "/team/app:v1"
	first := registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "one"}))
	var second string
	images := &registrytest.Images{}
	fast := newImporter(t, importer.Options{})
	var once sync.Once
	slow := newImporter(t, importer.Options{Progress: func(e importer.Event) {
		if e.Kind == importer.EventResolved {
			once.Do(func() {
				second = registry.Push("team/app:v1", newImage(t, sample.Spec{Name: "two"}))
				mustImport(t, fast, ref, images)
			})
		}
	}})
	result := mustImport(t, slow, ref, images)
	if got, _ := history(t, images, ref); !slices.Equal(got, []string{second}) || result.Digest != second {
		t.Errorf("the history is %v, the slow import says %s", got, result.Digest)
	}
	if got := known(stored(t, images, first)); slices.Contains(got, ref) {
		t.Errorf("the image that was replaced is known by %v", got)
	}
}

// An image that is asked for by its SHA-512 is stored by that name, and its bytes are checked
// against it.
func TestImportBySHA512(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	image := newImage(t, sample.Spec{Name: "one"})
	registry.Push("team/app:v1", image)
	raw, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	mediaType, err := image.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(raw)
	digest := "sha512:" + hex.EncodeToString(sum[:])
	// A registry of its own kind: it has the manifest under that name.
	serve := func(body []byte) registrytest.Fault {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", string(mediaType))
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				w.Header().Set("Docker-Content-Digest", digest)
				if req.Method != http.MethodHead {
					_, _ = w.Write(body)
				}
			})
		}
	}
	registry.Inject("/manifests/sha512:", 0, serve(append(slices.Clone(raw), ' ')))
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/team/app@"+digest), images)
	if err == nil || len(images.Names()) != 0 {
		t.Errorf("other bytes are stored: %v, %v", images.Names(), err)
	}
	registry.Heal()
	registry.Inject("/manifests/sha512:", 0, serve(raw))
	result := mustImport(t, im, registry.Host+"/team/app@"+digest, images)
	if result.Digest != digest || !slices.Equal(images.Names(), []string{digest}) {
		t.Errorf("it is %s, stored are %v", result.Digest, images.Names())
	}
}

// A registry may delete what a tag has left, and tells of the tag alone. Whoever finds that the tag
// has moved, or is gone, asks for what it led to: also an import by hand.
func TestWhatATagHasLeftIsAskedFor(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	im := newImporter(t, importer.Options{})
	ref := registry.Host + "/team/app:v1"
	push := func(tag, name string) string {
		return registry.Push("team/app:"+tag, newImage(t, sample.Spec{Name: name}))
	}
	missing := func(digest string) (gone []string) {
		for ref := range annotation.Missing(stored(t, images, digest).Annotations) {
			gone = append(gone, ref.String())
		}
		return gone
	}
	wantGone := func(when string, result *importer.Result, digest string, want bool) {
		t.Helper()
		own := registry.Host + "/team/app@" + digest
		if got := missing(digest); slices.Contains(got, own) != want {
			t.Errorf("%s: marked as gone: %v", when, got)
		}
		if got := result.Gone; slices.Contains(got, digest) != want {
			t.Errorf("%s: the result has %v", when, got)
		}
	}
	first := push("v1", "one")
	mustImport(t, im, ref, images)
	second := push("v1", "two")
	wantGone("moved, and still there", mustImport(t, im, ref, images), first, false)

	push("other", "two")
	mustImport(t, im, registry.Host+"/team/app:other", images)
	third := push("v1", "three")
	registry.Inject(second, 0, registrytest.Status(http.StatusInternalServerError, "UNKNOWN"))
	result := mustImport(t, im, ref, images)
	if wantGone("another tag leads to it, which is enough", result, second, false); len(result.Warnings) > 0 {
		t.Errorf("warnings %q", result.Warnings)
	}
	registry.Heal()

	push("v1", "four")
	deleteTag(t, registry, "team/app", third)
	wantGone("moved, and gone", mustImport(t, im, ref, images), third, true)

	fourth := push("v1", "four")
	push("v1", "five")
	registry.Inject(fourth, 0, registrytest.Status(http.StatusForbidden, "DENIED"))
	result = mustImport(t, im, ref, images)
	if wantGone("not known", result, fourth, false); len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], fourth) {
		t.Errorf("warnings %q", result.Warnings)
	}
	registry.Heal()

	fifth := push("v1", "five")
	deleteTag(t, registry, "team/app", "v1")
	deleteTag(t, registry, "team/app", fifth)
	result, err := im.Import(t.Context(), parse(t, ref), images)
	wantReason(t, err, pull.NotFound)
	wantGone("the tag is gone, too", result, fifth, true)
}
