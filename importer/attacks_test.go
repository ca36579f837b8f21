package importer_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// says answers a HEAD with a digest, and everything else as before.
func says(digest string) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodHead {
				next.ServeHTTP(w, req)
				return
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			w.Header().Set("Docker-Content-Digest", digest)
		})
	}
}

// A registry that names the digest of an image of others, and does not have all of it, is not known
// to have the image: a stream for its repository would show what it is. Nor do its tags lead there.
func TestAttackDigestOfOthers(t *testing.T) {
	t.Parallel()
	secret := newImage(t, sample.Spec{Name: "secret"})
	raw, err := secret.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, mediaType := manifest.Digest(raw), string(types.OCIManifestSchema1)
	index := func(entry string) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}%s]}`, types.OCIImageIndex, mediaType, digest, len(raw), entry)
	}
	for name, tc := range map[string]struct {
		attack func(evil *registrytest.Registry) (reference string)
		want   pull.Reason // "" if something else is imported
		leads  bool        // the tag leads to the manifest, which is there
	}{
		"by the digest of a tag": {func(evil *registrytest.Registry) string {
			evil.Inject("HEAD ", 0, says(digest))
			return "/evil/app:v1"
		}, pull.NotFound, false},
		"by a digest": {func(evil *registrytest.Registry) string {
			evil.Inject("HEAD ", 0, says(digest))
			return "/evil/app@" + digest
		}, pull.NotFound, false},
		"with other bytes": {func(evil *registrytest.Registry) string {
			evil.PushManifest("evil/app:v1", mediaType, digest, []byte(`{"schemaVersion":2}`))
			return "/evil/app:v1"
		}, pull.DigestMismatch, false},
		"with the manifest, and without the config": {func(evil *registrytest.Registry) string {
			evil.PushManifest("evil/app:v1", mediaType, digest, raw)
			return "/evil/app:v1"
		}, pull.Incomplete, true},
		"with the manifest, and another config": {func(evil *registrytest.Registry) string {
			evil.Push("evil/app:v1", secret)
			evil.Inject("/blobs/", 0, registrytest.Corrupt())
			return "/evil/app:v1"
		}, pull.DigestMismatch, true},
		"in an index": {func(evil *registrytest.Registry) string {
			list := index("")
			evil.PushManifest("evil/app:v1", string(types.OCIImageIndex), manifest.Digest(list), list)
			evil.Inject("HEAD .*"+digest, 0, says(digest))
			return "/evil/app:v1"
		}, pull.Incomplete, false},
		"in an index beside another image": {func(evil *registrytest.Registry) string {
			own := newImage(t, sample.Spec{Name: "own"})
			evil.Push("evil/app:own", own)
			ownRaw, _ := own.RawManifest()
			list := index(fmt.Sprintf(`,{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, manifest.Digest(ownRaw), len(ownRaw)))
			evil.PushManifest("evil/app:v1", string(types.OCIImageIndex), manifest.Digest(list), list)
			evil.Inject("HEAD .*"+digest, 0, says(digest))
			return "/evil/app:v1"
		}, "", false},
	} {
		for _, ahead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ahead %t", name, ahead), func(t *testing.T) {
				t.Parallel()
				private, evil, images := registrytest.New(t), registrytest.New(t), &registrytest.Images{}
				private.Push("team/secret:v1", secret)
				im := newImporter(t, importer.Options{})
				mustImport(t, im, private.Host+"/team/secret:v1", images)
				reference := evil.Host + tc.attack(evil)
				var into importer.Tagged = images
				if ahead {
					references := []string{reference}
					for i := range 60 {
						references = append(references, fmt.Sprintf("%s/evil/app:%d", evil.Host, i))
					}
					into = newPrefetcher(t, images, clocktesting.NewFakeClock(time.Now()), references)
				}
				for range 2 {
					result, err := im.Import(t.Context(), parse(t, reference), into)
					if tc.want != "" {
						wantReason(t, err, tc.want)
					} else if err != nil || len(result.Skipped) != 1 || result.Skipped[0].Digest != digest || slices.Contains(digests(result), digest) {
						t.Errorf("imported %+v, %v", result, err)
					}
					if _, _, err := im.RefreshTag(t.Context(), parse(t, reference), into); err != nil && tc.want == "" {
						t.Error(err)
					}
				}
				image := stored(t, images, digest)
				if annotation.WasIn(image.Annotations, image.DockerImageReference, parse(t, reference).Bare()) || strings.Contains(fmt.Sprint(image), evil.Host) {
					t.Errorf("it is known to be there: %v", image.Annotations)
				}
				if tag, err := images.GetTag(t.Context(), tags.Name(parse(t, reference)), metav1.GetOptions{}); err == nil {
					if now, _ := tags.Now(tag); now == digest && !tc.leads {
						t.Error("the tag leads to it")
					}
				}
				// Where all of it is, it is known, and later imports cost a HEAD.
				evil.Heal()
				evil.Push("evil/honest:v1", secret)
				evil.Reset()
				mustImport(t, im, evil.Host+"/evil/honest:v1", into)
				if n := len(evil.Requests()); n != 2 {
					t.Errorf("the first import: %v", requests(evil))
				}
				if image := stored(t, images, digest); !annotation.WasIn(image.Annotations, image.DockerImageReference, parse(t, evil.Host+"/evil/honest").Bare()) {
					t.Errorf("it is not known where it was read: %v", image.Annotations)
				}
				evil.Reset()
				mustImport(t, im, evil.Host+"/evil/honest:v1", into)
				if n := len(evil.Requests()); n != 1 {
					t.Errorf("the second import: %v", requests(evil))
				}
			})
		}
	}
}

// What is not a manifest moves no tag, and is not an image: an answer without bytes, one that is
// cut, and what is cut in the registry. The rest of an index that lists such a thing is imported.
func TestWhatIsNotAManifestMovesNothing(t *testing.T) {
	t.Parallel()
	good := newImage(t, sample.Spec{Name: "good"})
	raw, err := good.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	noHead := registrytest.Status(http.StatusMethodNotAllowed, "UNSUPPORTED")
	for name, tc := range map[string]struct {
		damage func(registry *registrytest.Registry)
		want   pull.Reason
	}{
		"an empty answer": {func(registry *registrytest.Registry) {
			registry.Inject("/manifests/", 0, answers(nil))
		}, pull.Unexpected},
		"an empty answer with its digest": {func(registry *registrytest.Registry) {
			registry.PushManifest("team/app:v1", string(types.OCIManifestSchema1), manifest.Digest(nil), nil)
		}, pull.InvalidImage},
		"a short Content-Length": {func(registry *registrytest.Registry) {
			registry.Inject("HEAD ", 0, noHead)
			registry.Inject("/manifests/", 0, answers(raw[:len(raw)-10]))
		}, pull.Unexpected},
		"cut in the registry": {func(registry *registrytest.Registry) {
			registry.PushManifest("team/app:v1", string(types.OCIManifestSchema1), manifest.Digest(raw[:len(raw)-1]), raw[:len(raw)-1])
		}, pull.InvalidImage},
		"an object that is nothing": {func(registry *registrytest.Registry) {
			body := []byte(`{"schemaVersion":2,"errors":[]}`)
			registry.PushManifest("team/app:v1", string(types.OCIManifestSchema1), manifest.Digest(body), body)
		}, pull.InvalidImage},
		"a digest without a manifest": {func(registry *registrytest.Registry) {
			registry.Inject("HEAD ", 0, says(manifest.Digest([]byte("elsewhere"))))
		}, pull.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, images := registrytest.New(t), &registrytest.Images{}
			ref := registry.Host + "/team/app:v1"
			digest := registry.Push("team/app:v1", good)
			im := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}})
			mustImport(t, im, ref, images)
			tc.damage(registry)
			_, err := im.Import(t.Context(), parse(t, ref), images)
			wantReason(t, err, tc.want)
			if got := images.Names(); !slices.Equal(got, []string{digest}) {
				t.Errorf("stored are %v", got)
			}
			if got := known(stored(t, images, digest)); !slices.Contains(got, ref) {
				t.Errorf("the image is known by %v", got)
			}
			if got, tag := history(t, images, ref); !slices.Equal(got, []string{digest}) || tags.Failure(tag) == nil {
				t.Errorf("the tag led to %v: %+v", got, tag.Status.Conditions)
			}
		})
	}

	registry := registrytest.New(t)
	registry.Push("team/app:v1", good)
	cut := raw[:len(raw)-1]
	registry.PushManifest("team/app:cut", string(types.OCIManifestSchema1), manifest.Digest(cut), cut)
	list := fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":%[1]q,"digest":%[2]q,"size":%[3]d},{"mediaType":%[1]q,"digest":%[4]q,"size":%[5]d}]}`,
		types.OCIManifestSchema1, manifest.Digest(cut), len(cut), manifest.Digest(raw), len(raw))
	registry.PushManifest("team/app:list", string(types.OCIImageIndex), manifest.Digest(list), list)
	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/team/app:list", &registrytest.Images{})
	if len(result.Images) != 2 || len(result.Skipped) != 1 || result.Skipped[0].Reason != importer.SkippedNoManifest {
		t.Errorf("the index led to %v, and skipped %v", digests(result), result.Skipped)
	}
}

// answers is a registry that sends a body for a manifest, whole as far as HTTP is concerned, and no
// digest.
func answers(body []byte) registrytest.Fault {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			_, _ = w.Write(body)
		})
	}
}
