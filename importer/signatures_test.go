package importer_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// tagFinder finds a cosign-like tag through the transport it is given.
type tagFinder struct {
	mu    sync.Mutex
	asked []string
	// fail is the result of each search, but for the digest except.
	fail   error
	except string
}

func (f *tagFinder) Forget(name.Repository)                      {}
func (f *tagFinder) Listed(name.Repository, []string, time.Time) {}

func (f *tagFinder) Find(ctx context.Context, digest name.Digest, _ reference.Reference, transport http.RoundTripper, _ time.Time, _ bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	f.mu.Lock()
	f.asked = append(f.asked, digest.DigestStr())
	f.mu.Unlock()
	if f.fail != nil && digest.DigestStr() != f.except {
		return nil, nil, nil, f.fail
	}
	tag := digest.Context().Tag(strings.Replace(digest.DigestStr(), ":", "-", 1) + ".sig")
	descriptor, err := remote.Get(tag, remote.WithContext(ctx), remote.WithTransport(transport))
	if err != nil {
		return nil, nil, []string{"no signature of " + digest.DigestStr()}, nil
	}
	signature := imagev1.ImageSignature{
		ObjectMeta: metav1.ObjectMeta{Name: digest.DigestStr() + "@" + descriptor.Digest.Hex},
		Type:       "test", Content: descriptor.Manifest,
	}
	return []imagev1.ImageSignature{signature}, map[string]string{"test/found": "yes"}, nil, nil
}

func TestSignaturesAreFoundThroughTheSession(t *testing.T) {
	registry, images := registrytest.New(t, registrytest.WithAuth(with("bearer", nil))), &registrytest.Images{}
	index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64")
	digest := registry.PushIndex("team/app:v1", index)
	finder := &tagFinder{}
	im := newImporter(t, importer.Options{Keychain: secret, Signatures: finder})

	result := mustImport(t, im, registry.Host+"/team/app:v1", images)
	if !slices.Equal(sorted(finder.asked), images.Names()) || len(result.Warnings) != 3 {
		t.Errorf("asked for %v, warnings %v", finder.asked, result.Warnings)
	}
	if n := len(registry.AllRequests()) - len(registry.Requests()); n != 1 {
		t.Errorf("the finder greets the registry again: %v", registry.AllRequests())
	}

	// Signatures come after the image.
	signature, err := sample.Artifact("application/vnd.test.signature", []byte("signature"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", signature)
	result = mustImport(t, im, registry.Host+"/team/app:v1", images)
	root := result.Images[0]
	if root.Action != importer.Updated || len(root.Image.Signatures) != 1 || root.Image.Annotations["test/found"] != "yes" || len(result.Images[1].Image.Signatures) != 0 {
		t.Errorf("result is %s with %v, %v", root.Action, root.Image.Signatures, root.Image.Annotations)
	}
	// And are found once.
	result = mustImport(t, im, registry.Host+"/team/app:v1", images)
	if root := result.Images[0]; root.Action != importer.Unchanged || len(root.Image.Signatures) != 1 {
		t.Errorf("result is %s with %v", root.Action, root.Image.Signatures)
	}
}

func TestSignaturesThatCannotBeReadFailTheImportNotTheImage(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	digest := registry.Push("app:v1", newImage(t, sample.Spec{}))
	broken := errors.New("broken")
	im := newImporter(t, importer.Options{Signatures: &tagFinder{fail: broken}})
	result, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
	if !errors.Is(err, broken) || result == nil || len(result.Images) != 1 || !slices.Equal(images.Names(), []string{digest}) {
		t.Errorf("result is %+v, %v", result, err)
	}
}

// An index is stored although the signatures of one of its images could not be searched.
func TestIndexWithAnImageWhoseSignaturesCannotBeRead(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	index := registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64"))
	finder := &tagFinder{except: index, fail: errors.New("broken")}
	result, err := newImporter(t, importer.Options{Signatures: finder}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
	if !importer.Unsearched(err) || result == nil || len(result.Images) != 3 || len(images.Names()) != 3 || result.Images[0].Image.Name != index {
		t.Errorf("result is %+v, %v", result, err)
	}
	for _, r := range annotation.Found(result.Images[0].Image.Annotations) {
		if r.Unread != "" {
			t.Errorf("the index's own signatures: %+v", r)
		}
	}
	registry.Inject("GET .*/manifests/"+result.Images[1].Image.Name, 0, registrytest.Status(500, "UNKNOWN"))
	_, err = newImporter(t, importer.Options{Signatures: finder}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	if err == nil || importer.Unsearched(err) {
		t.Errorf("an image of an index that is not read is told as a search: %v", err)
	}
}

// What is found cannot replace what the import itself notes.
func TestFinderCannotRewriteReferences(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Signatures: annotator{annotation.References: "[]"}})
	result := mustImport(t, im, registry.Host+"/app:v1", images)
	if r := known(result.Images[0].Image); len(r) != 1 {
		t.Errorf("references are %v", r)
	}
}

type annotator map[string]string

func (a annotator) Forget(name.Repository)                      {}
func (a annotator) Listed(name.Repository, []string, time.Time) {}

func (a annotator) Find(context.Context, name.Digest, reference.Reference, http.RoundTripper, time.Time, bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	return nil, a, nil, nil
}

// referrersFinder is a tagFinder that asks for the referrers first, and goes on without them.
type referrersFinder struct{ tagFinder }

func (f *referrersFinder) Find(ctx context.Context, digest name.Digest, ref reference.Reference, transport http.RoundTripper, at time.Time, demanded bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	of := digest.Context()
	url := of.Scheme() + "://" + of.RegistryStr() + "/v2/" + of.RepositoryStr() + "/referrers/" + digest.DigestStr()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	if resp, err := (&http.Client{Transport: transport}).Do(request); err == nil {
		resp.Body.Close()
	}
	return f.tagFinder.Find(ctx, digest, ref, transport, at, demanded)
}

// Referrers that a registry refuses for an hour, or that a gateway has lost, keep nobody from the
// signature that a tag has.
func TestRefusedReferrersPauseNothing(t *testing.T) {
	t.Parallel()
	const page = "/-/page"
	toPage := func(http.Handler) http.Handler {
		return http.RedirectHandler(page, http.StatusSeeOther)
	}
	for what, faults := range map[string]map[string]registrytest.Fault{
		"429":            {"/referrers/": registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600")},
		"503":            {"/referrers/": registrytest.Status(503, "UNAVAILABLE", "Retry-After", "60")},
		"a spent quota":  {"/referrers/": registrytest.Status(429, "TOOMANYREQUESTS", "RateLimit-Remaining", "0", "RateLimit-Reset", "3600")},
		"303, then 429":  {"/referrers/": toPage, page + "$": registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600")},
		"no gateway 502": {"/referrers/": registrytest.Status(502, "UNKNOWN")},
	} {
		registry, images := registrytest.New(t), &registrytest.Images{}
		digest := registry.Push("app:v1", newImage(t, sample.Spec{}))
		signature, err := sample.Artifact("application/vnd.test.signature", []byte("signature"))
		if err != nil {
			t.Fatal(err)
		}
		registry.Push("app:"+strings.Replace(digest, ":", "-", 1)+".sig", signature)
		for match, fault := range faults {
			registry.Inject(match, 0, fault)
		}
		skipping := &skippingClock{}
		im := newImporter(t, importer.Options{Clock: skipping, Signatures: &referrersFinder{}})
		result := mustImport(t, im, registry.Host+"/app:v1", images)
		if n := len(result.Images[0].Image.Signatures); n != 1 {
			t.Errorf("%s: %d signatures, %v", what, n, result.Warnings)
		}
		for _, wait := range skipping.waited() {
			if wait > 2*time.Second {
				t.Errorf("%s: a wait of %s", what, wait)
			}
		}
		if n := registry.Count("/referrers/"); n == 0 || n > 3 {
			t.Errorf("%s: referrers are asked for %d times", what, n)
		}
	}
}
