package importer_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/sbom"
)

// packageStore is an importer.PackageStore in memory.
type packageStore struct {
	mu     sync.Mutex
	lists  map[string]*packages.ImagePackages
	writes int
	fail   error
}

var packagesResource = schema.GroupResource{Group: packages.GroupVersion.Group, Resource: packages.Resource}

func (s *packageStore) GetPackages(_ context.Context, digest string, _ metav1.GetOptions) (*packages.ImagePackages, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	if list := s.lists[digest]; list != nil {
		return list.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(packagesResource, digest)
}

func (s *packageStore) CreatePackages(_ context.Context, list *packages.ImagePackages, _ metav1.CreateOptions) (*packages.ImagePackages, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists[list.Name] != nil {
		return nil, apierrors.NewAlreadyExists(packagesResource, list.Name)
	}
	if s.lists == nil {
		s.lists = map[string]*packages.ImagePackages{}
	}
	s.writes++
	s.lists[list.Name] = derived(list)
	return list, nil
}

func (s *packageStore) UpdatePackages(_ context.Context, list *packages.ImagePackages, _ metav1.UpdateOptions) (*packages.ImagePackages, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.lists[list.Name] = derived(list)
	return list, nil
}

// derived is a list as a server stores it that reads signed and listed documents itself.
func derived(list *packages.ImagePackages) *packages.ImagePackages {
	list = list.DeepCopy()
	for i := range list.Sources {
		if s := &list.Sources[i]; s.IsUnderived() {
			s.DerivedFrom = s.Blob
		}
	}
	return list
}

// names are the names of the packages of an image, and problems what is wrong with its documents.
func (s *packageStore) names(t testing.TB, digest string) (names, problems []string) {
	t.Helper()
	list, err := s.GetPackages(t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		return nil, nil
	}
	if names, err = packages.Names(list); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, source := range list.Sources {
		if source.Problem != "" {
			problems = append(problems, source.Problem)
		}
	}
	return names, problems
}

func spdxOf(names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf(`{"name":%q,"SPDXID":"SPDXRef-%[1]s"}`, name))
	}
	return `{"spdxVersion":"SPDX-2.3","packages":[` + strings.Join(all, ",") + `]}`
}

func statementOf(digest, predicate string) string {
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v0.1","predicateType":"https://spdx.dev/Document","subject":[{"digest":{"sha256":%q}}],"predicate":%s}`, strings.TrimPrefix(digest, "sha256:"), predicate)
}

// attach pushes a document as a referrer of an image, and returns its manifest's digest.
func attach(t testing.TB, registry *registrytest.Registry, to v1.Image, typ, content string) string {
	t.Helper()
	artifact, err := sample.Artifact(typ, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return registry.Push("app:referrer", mutate.Subject(artifact, descriptorOf(t, to)).(v1.Image))
}

func descriptorOf(t testing.TB, image v1.Image) v1.Descriptor {
	t.Helper()
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := image.Size()
	if err != nil {
		t.Fatal(err)
	}
	return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size}
}

// attest pushes a document as `cosign attest` does it at the tag of an image's attestations.
func attest(t testing.TB, registry *registrytest.Registry, digest, predicate string) {
	t.Helper()
	envelope := `{"payloadType":"application/vnd.in-toto+json","payload":"` + base64.StdEncoding.EncodeToString([]byte(statementOf(digest, predicate))) + `","signatures":[{"sig":"AA=="}]}`
	attestation, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: static.NewLayer([]byte(envelope), "application/vnd.dsse.envelope.v1+json"), Annotations: map[string]string{"predicateType": "https://spdx.dev/Document"},
	})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("app:"+strings.Replace(digest, ":", "-", 1)+".att", attestation)
}

func importerOfPackages(t testing.TB, store *packageStore) *importer.Importer {
	im := newImporter(t, importer.Options{Signatures: newFinder(t)})
	im.KeepPackages(store)
	return im
}

// However many registries begin documents of the same image that do not end, and however much of
// them they send before, the largest document of another registry is read meanwhile.
func TestAttackDocumentsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, sends := range map[string]int{"of which little comes": 1, "of which most comes": sbom.MaxDocument - 2<<10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, store := clocktesting.NewFakeClock(time.Now()), &packageStore{}
			const forever = 1000 * time.Hour
			im := newImporter(t, importer.Options{Signatures: newFinder(t), Clock: clock, Limits: pull.Limits{Stall: forever, Request: forever, JobTime: forever}})
			im.KeepPackages(store)
			image, hostile := newImage(t, sample.Spec{}), [4]*registrytest.Registry{}
			push := func(registry *registrytest.Registry, name string) string {
				attach(t, registry, image, "application/spdx+json", spdxOf(name)+strings.Repeat(" ", sbom.MaxDocument-1<<10))
				return registry.Push("app:v1", image)
			}
			ctx, stop := context.WithCancel(t.Context())
			came := make(chan struct{}, 1000)
			var ended sync.WaitGroup
			defer ended.Wait()
			defer stop()
			for i := range hostile {
				hostile[i] = registrytest.New(t)
				push(hostile[i], fmt.Sprint("of-", i))
				hostile[i].Inject("GET .*/blobs/", 0, cut(t, 1<<20, sends, came))
				ended.Go(func() { _, _ = im.Import(ctx, parse(t, hostile[i].Host+"/app:v1"), &registrytest.Images{}) })
			}
			for range hostile {
				<-came
			}
			honest := registrytest.New(t)
			digest, done := push(honest, "bash"), make(chan error)
			go func() {
				_, err := im.Import(t.Context(), parse(t, honest.Host+"/app:v1"), &registrytest.Images{})
				done <- err
			}()
			for deadline := time.After(2 * time.Minute); ; clock.Step(100 * time.Millisecond) {
				select {
				case err := <-done:
					if names, problems := store.names(t, digest); err != nil || !slices.Equal(names, []string{"bash"}) || problems != nil {
						t.Error(names, problems, err)
					}
					return
				case <-deadline:
					t.Fatal("the document of another registry is not read")
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
}

// cut sends the beginning of answers that are longer than size, and then nothing until the client
// is gone. It tells came of each.
func cut(t testing.TB, size, sends int, came chan<- struct{}) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer := httptest.NewRecorder()
			if next.ServeHTTP(answer, req); answer.Body.Len() > size {
				w.Header().Set("Content-Length", strconv.Itoa(answer.Body.Len()))
				_, _ = w.Write(answer.Body.Bytes()[:sends])
				_ = http.NewResponseController(w).Flush()
				came <- struct{}{}
				<-req.Context().Done()
				return
			}
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = answer.Body.WriteTo(w)
		})
	}
}

func TestPackagesOfReferrersAndAttestations(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	attach(t, registry, image, "application/spdx+json", spdxOf("bash"))
	attest(t, registry, digest, spdxOf("openssl"))
	im := importerOfPackages(t, store)
	mustImport(t, im, registry.Host+"/app:v1", images)
	names, problems := store.names(t, digest)
	if !slices.Equal(names, []string{"bash", "openssl"}) || problems != nil {
		t.Fatal(names, problems)
	}
	signed := 0
	for _, source := range store.lists[digest].Sources {
		if source.Signed {
			signed++
			if source.Signature == "" || !slices.Contains(signatureNames(t, images, digest), digest+"@"+source.Signature) {
				t.Errorf("the image does not hold the signature %q", source.Signature)
			}
		}
	}
	if signed != 1 {
		t.Errorf("%d documents are signed", signed)
	}

	// A document is read once.
	registry.Reset()
	im.ForgetSignatures(parse(t, registry.Host+"/app@"+digest))
	mustImport(t, im, registry.Host+"/app:v1", images)
	if n := registry.Count("GET /v2/app/blobs/"); store.writes != 1 || n > 1 {
		// the attestation is read to be judged
		t.Errorf("%d writes; %v", store.writes, registry.Requests())
	}

	// One that is attached later comes beside the others.
	attach(t, registry, image, "application/vnd.cyclonedx+json", `{"bomFormat":"CycloneDX","components":[{"name":"curl"}]}`)
	im.ForgetSignatures(parse(t, registry.Host+"/app@"+digest))
	mustImport(t, im, registry.Host+"/app:v1", images)
	if names, problems := store.names(t, digest); !slices.Equal(names, []string{"bash", "curl", "openssl"}) || problems != nil {
		t.Error(names, problems)
	}
}

func signatureNames(t testing.TB, images *registrytest.Images, digest string) (all []string) {
	t.Helper()
	image, err := images.Get(t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range image.Signatures {
		all = append(all, s.Name)
	}
	return all
}

// A document that has left the registry is dropped, but not if the registry could not be read.
func TestPackagesOfDocumentsThatLeave(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	attached := attach(t, registry, image, "application/spdx+json", spdxOf("bash"))
	im := importerOfPackages(t, store)
	again := func() {
		im.ForgetSignatures(parse(t, registry.Host+"/app@"+digest))
		_, _ = im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
	}
	again()
	registry.Inject("/referrers/", 0, registrytest.Status(http.StatusInternalServerError, ""))
	again()
	if names, _ := store.names(t, digest); !slices.Equal(names, []string{"bash"}) {
		t.Error(names)
	}
	registry.Heal()
	registry.Inject("/referrers/", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIImageIndex))
			fmt.Fprint(w, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
		})
	})
	again()
	if names, _ := store.names(t, digest); names != nil {
		t.Errorf("%v, though %s has left", names, attached)
	}
}

// pushBuildKit pushes an index that lists the SBOM of its platform, as BuildKit does it. It returns
// the digests of the index, of the platform and of the SBOM.
func pushBuildKit(t testing.TB, registry *registrytest.Registry) (index, platform, document string) {
	t.Helper()
	image := newImage(t, sample.Spec{})
	of := descriptorOf(t, image)
	layer := static.NewLayer([]byte(statementOf(of.Digest.String(), spdxOf("busybox"))), "application/vnd.in-toto+json")
	attestation, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), mutate.Addendum{
		Layer: layer, Annotations: map[string]string{"in-toto.io/predicate-type": "https://spdx.dev/Document"},
	})
	if err != nil {
		t.Fatal(err)
	}
	index = registry.PushIndex("app:v1", sample.Index(sample.OCI,
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{
			Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
			Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": of.Digest.String()},
		}}))
	blob, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return index, of.Digest.String(), blob.String()
}

// BuildKit lists the SBOM of a platform beside it in the index.
func TestPackagesOfBuildKit(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	index, platform, _ := pushBuildKit(t, registry)
	im := importerOfPackages(t, store)
	mustImport(t, im, registry.Host+"/app:v1", images)
	names, problems := store.names(t, platform)
	if !slices.Equal(names, []string{"busybox"}) || problems != nil {
		t.Fatal(names, problems)
	}
	if source := store.lists[platform].Sources[0]; source.Index != index || source.Signed {
		t.Errorf("%+v", source)
	}
	// A search of the platform's referrers leaves it as it is.
	im.ForgetSignatures(parse(t, registry.Host+"/app@"+platform))
	mustImport(t, im, registry.Host+"/app@"+platform, images)
	if names, _ := store.names(t, platform); !slices.Equal(names, []string{"busybox"}) {
		t.Error(names)
	}
}

// What an index lists is read by the next attempt if the registry fails while the index is new.
func TestPackagesOfBuildKitThatFail(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	_, platform, document := pushBuildKit(t, registry)
	im := importerOfPackages(t, store)
	registry.Inject("/blobs/"+document, 0, registrytest.Status(http.StatusInternalServerError, ""))
	if _, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images); !importer.Unsearched(err) || err == nil {
		t.Fatal(err)
	}
	registry.Heal()
	mustImport(t, im, registry.Host+"/app:v1", images)
	if names, problems := store.names(t, platform); !slices.Equal(names, []string{"busybox"}) || problems != nil {
		t.Error(names, problems)
	}
	registry.Reset()
	mustImport(t, im, registry.Host+"/app:v1", images)
	if n := registry.Count("GET /v2/app/blobs/" + document); n != 0 {
		t.Errorf("it is read %d times again", n)
	}
}

// What cannot be read is in the list with its reason, and does not keep an image from being
// imported.
func TestPackagesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ typ, content, problem string }{
		"tag-value":     {"text/spdx", "SPDXVersion: SPDX-2.3", "only the JSON forms"},
		"another image": {"application/spdx+json", statementOf("sha256:"+hex64, spdxOf("bash")), "about another image"},
		"too large":     {"application/spdx+json", strings.Repeat(" ", sbom.MaxDocument+1), "at most"},
		"damaged":       {"application/spdx+json", spdxOf("bash") + "}", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, store := registrytest.New(t), &packageStore{}
			image := newImage(t, sample.Spec{})
			digest := registry.Push("app:v1", image)
			attach(t, registry, image, tc.typ, tc.content)
			mustImport(t, importerOfPackages(t, store), registry.Host+"/app:v1", &registrytest.Images{})
			if names, problems := store.names(t, digest); names != nil || len(problems) != 1 || !strings.Contains(problems[0], tc.problem) {
				t.Errorf("%v, %q; want %q", names, problems, tc.problem)
			}
		})
	}
}

// Documents beyond the bounds of an image are counted, and not kept.
func TestAttackManyDocuments(t *testing.T) {
	t.Parallel()
	registry, store := registrytest.New(t), &packageStore{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	for i := range packages.MaxSources + 4 {
		attach(t, registry, image, "application/spdx+json", spdxOf(fmt.Sprintf("package-%d", i)))
	}
	mustImport(t, importerOfPackages(t, store), registry.Host+"/app:v1", &registrytest.Images{})
	names, problems := store.names(t, digest)
	if len(names) != packages.MaxSources || len(problems) != 1 || !strings.Contains(problems[0], "4 more documents") {
		t.Error(names, problems)
	}
}

// That documents are not read is said as long as it is so, and leaves what is wrong with others.
func TestPackagesOfDocumentsThatHaveNoRoom(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	for i := range packages.MaxSources + 4 {
		attach(t, registry, image, "application/spdx+json", spdxOf(fmt.Sprintf("package-%d", i), ""))
	}
	im := importerOfPackages(t, store)
	told := func() (own, others int) {
		im.ForgetSignatures(parse(t, registry.Host+"/app@"+digest))
		mustImport(t, im, registry.Host+"/app:v1", images)
		_, problems := store.names(t, digest)
		for _, problem := range problems {
			own += strings.Count(problem, "1 of its packages cannot be read")
			others += strings.Count(problem, "4 more documents are not read")
		}
		return own, others
	}
	for range 2 {
		if own, others := told(); own != packages.MaxSources || others != 1 || store.writes != 1 {
			t.Errorf("%d and %d problems, %d writes", own, others, store.writes)
		}
	}
	registry.Inject("/referrers/", 0, func(next http.Handler) http.Handler {
		// those leave for which there was no room
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			var index v1.IndexManifest
			if err := json.Unmarshal(answer.Body.Bytes(), &index); err != nil {
				t.Error(err)
			}
			index.Manifests = slices.DeleteFunc(index.Manifests, func(d v1.Descriptor) bool {
				return !slices.ContainsFunc(store.lists[digest].Sources, func(s packages.Source) bool { return s.Manifest == d.Digest.String() })
			})
			w.Header().Set("Content-Type", string(types.OCIImageIndex))
			_ = json.NewEncoder(w).Encode(index)
		})
	})
	if own, others := told(); own != packages.MaxSources || others != 0 {
		t.Errorf("%d and %d problems, though all documents are read", own, others)
	}
}

// Documents that come one by one have no more room together than those that come at once.
func TestAttackLargeDocuments(t *testing.T) {
	t.Parallel()
	registry, store, images := registrytest.New(t), &packageStore{}, &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	im, random := importerOfPackages(t, store), rand.New(rand.NewPCG(1, 2))
	for range 3 {
		var names []string
		for range 9000 { // some 200 KiB packed
			names = append(names, fmt.Sprintf("%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64()))
		}
		attach(t, registry, image, "application/spdx+json", spdxOf(names...))
		im.ForgetSignatures(parse(t, registry.Host+"/app@"+digest))
		mustImport(t, im, registry.Host+"/app:v1", images)
	}
	packed := 0
	for _, source := range store.lists[digest].Sources {
		packed += len(source.Packed)
	}
	_, problems := store.names(t, digest)
	if packed > packages.MaxPacked || packed == 0 || len(problems) != 1 || !strings.Contains(problems[0], "more packages than are kept") {
		t.Errorf("%d bytes packed, %q", packed, problems)
	}
}

// A server without the resource, or a role without the right, keeps no packages, and the import
// says so.
func TestPackagesAreForbidden(t *testing.T) {
	t.Parallel()
	registry, store := registrytest.New(t), &packageStore{fail: apierrors.NewForbidden(packagesResource, "", fmt.Errorf("no right"))}
	image := newImage(t, sample.Spec{})
	registry.Push("app:v1", image)
	attach(t, registry, image, "application/spdx+json", spdxOf("bash"))
	result := mustImport(t, importerOfPackages(t, store), registry.Host+"/app:v1", &registrytest.Images{})
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "packages are not kept") {
		t.Error(result.Warnings)
	}
}
