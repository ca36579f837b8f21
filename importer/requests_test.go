package importer_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/find"
)

// newFinder finds signatures as the program does, without lookaside storage and policies.
func newFinder(t testing.TB) *find.Finder {
	t.Helper()
	return newFinderFor(t, demandsSigned(false))
}

// demandsSigned are policies that demand signatures of all images, or nothing.
type demandsSigned bool

func (d demandsSigned) Demands(reference.Reference) (signatures, attestations bool) {
	return bool(d), false
}

// newFinderFor is newFinder with policies.
func newFinderFor(t testing.TB, demands demandsSigned) *find.Finder {
	t.Helper()
	absent := filepath.Join(t.TempDir(), "absent")
	finder, err := find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent, Demands: demands})
	if err != nil {
		t.Fatal(err)
	}
	return finder
}

var (
	digestInPath = regexp.MustCompile(`sha256[:-][0-9a-f]{64}`)
	tagInPath    = regexp.MustCompile(`manifests/[0-9]+$`)
)

// kinds counts a registry's requests by what they are for, greetings included, and forgets them.
func kinds(registry *registrytest.Registry) string {
	counts := map[string]int{}
	for _, r := range registry.AllRequests() {
		kind := strings.Replace(r.String(), "/v2/team/app", "", 1)
		kind = tagInPath.ReplaceAllString(digestInPath.ReplaceAllString(kind, "D"), "manifests/T")
		counts[kind]++
	}
	registry.Reset()
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d × %s", counts[kind], kind))
	}
	return strings.Join(out, ", ")
}

// A known image cost five requests, three of them 404.
func TestRequestsOfARun(t *testing.T) {
	t.Parallel()
	for _, api := range []bool{true, false} {
		t.Run(fmt.Sprintf("referrers API=%t", api), func(t *testing.T) {
			t.Parallel()
			registry, images := registrytest.New(t), &registrytest.Images{}
			var references []string
			for i := range 30 {
				reference := fmt.Sprint("team/app:", i)
				registry.Push(reference, newImage(t, sample.Spec{Name: reference}))
				references = append(references, registry.Host+"/"+reference)
			}
			if !api {
				registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
			}
			for _, tt := range []struct{ run, want string }{
				{"the first", "1 × GET /v2/, 30 × GET /blobs/D, 30 × GET /manifests/T"},
				{"known", "1 × GET /v2/, 30 × HEAD /manifests/T"},
			} {
				im := newImporter(t, importer.Options{Signatures: newFinder(t), SignaturesAge: time.Hour})
				for _, reference := range references {
					mustImport(t, im, reference, images)
				}
				referrers := "30 × GET /referrers/D"
				if !api {
					referrers = "1 × GET /referrers/D"
				}
				want := strings.Split(tt.want+", "+referrers+", 1 × GET /tags/list", ", ")
				got := strings.Split(kinds(registry), ", ")
				if slices.Sort(got); !slices.Equal(got, sorted(want)) {
					t.Errorf("%s: %q, want %q", tt.run, got, sorted(want))
				}
				// Once more in the same run, and by its digest.
				result := mustImport(t, im, references[0], images)
				mustImport(t, im, registry.Host+"/team/app@"+result.Digest, images)
				if got := kinds(registry); got != "1 × HEAD /manifests/D, 1 × HEAD /manifests/T" {
					t.Errorf("%s, once more: %s", tt.run, got)
				}
			}
			im := newImporter(t, importer.Options{})
			for _, reference := range references {
				mustImport(t, im, reference, images)
			}
			if got := kinds(registry); got != "1 × GET /v2/, 30 × HEAD /manifests/T" {
				t.Errorf("without signatures: %s", got)
			}
		})
	}
}

// Where a policy demands signatures, the list of tags does not tell that there are none: one more
// request for each image.
func TestRequestsWherePoliciesDemandSignatures(t *testing.T) {
	t.Parallel()
	for _, api := range []bool{true, false} {
		registry, images := registrytest.New(t), &registrytest.Images{}
		registry.Push("team/app:1", newImage(t, sample.Spec{}))
		if !api {
			registry.Inject("/referrers/", 0, registrytest.Status(404, "NOT_FOUND"))
		}
		im := newImporter(t, importer.Options{Signatures: newFinderFor(t, true)})
		mustImport(t, im, registry.Host+"/team/app:1", images)
		registry.Reset()
		mustImport(t, im, registry.Host+"/team/app:1", images)
		want := "1 × GET /manifests/D.sig, 1 × GET /referrers/D, 1 × GET /tags/list, 1 × HEAD /manifests/T"
		if !api { // the fallback tag and cosign's; that there is no API is known
			want = "1 × GET /manifests/D, 1 × GET /manifests/D.sig, 1 × GET /tags/list, 1 × HEAD /manifests/T"
		}
		if got := kinds(registry); got != want {
			t.Errorf("referrers API %t: %s, want %s", api, got, want)
		}
	}
}

// A list of tags that was just read is not read again, and says which tags of signatures there are,
// also where a policy demands signatures, once it has proved to be whole.
func TestRequestsOfARepositoryThatWasListed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		demanded    bool
		signed, sig int // which tag is signed, unless the list hides that, and how many tags of signatures are asked for
	}{
		{false, -1, 0},
		{true, -1, 16},
		{true, 20, 17},
		{true, 3, 30},
	} {
		registry, images := registrytest.New(t), &registrytest.Images{}
		for i := range 30 {
			registry.Push(fmt.Sprint("team/app:", i), newImage(t, sample.Spec{Name: fmt.Sprint(i)}))
		}
		hides := tt.signed >= 0 && tt.signed < 16
		if hides {
			registry.Inject("/tags/list", 0, withoutSignatureTags)
		}
		im := newImporter(t, importer.Options{SignaturesAge: time.Hour, Signatures: newFinderFor(t, demandsSigned(tt.demanded))})
		if tt.signed >= 0 {
			digest, err := im.Resolve(t.Context(), parse(t, fmt.Sprint(registry.Host, "/team/app:", tt.signed)))
			if err != nil {
				t.Fatal(err)
			}
			registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", newImage(t, sample.Spec{Name: "signature"}))
		}
		registry.Reset()
		if _, _, err := im.Tags(t.Context(), parse(t, registry.Host+"/team/app").Bare()); err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			mustImport(t, im, fmt.Sprint(registry.Host, "/team/app:", i), images)
		}
		sig := registry.Count("/manifests/.*sig$")
		if sig != tt.sig || registry.Count("/tags/list") != 1 || registry.Count("HEAD ") != 0 {
			t.Errorf("%+v: %d tags of signatures are asked for: %s", tt, sig, kinds(registry))
		}
	}
}

// withoutSignatureTags is a registry whose lists lack signature tags.
func withoutSignatureTags(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		recorder := httptest.NewRecorder()
		next.ServeHTTP(recorder, req)
		_, _ = w.Write(regexp.MustCompile(`,?"sha256-[^"]*"`).ReplaceAll(recorder.Body.Bytes(), nil))
	})
}

// A server looks for signatures at every import, as what is told of an image comes after it.
func TestSignaturesAreLookedForByEachImportOfAServer(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.Push("team/app:1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Signatures: newFinder(t)})
	mustImport(t, im, registry.Host+"/team/app:1", images)
	registry.Reset()
	mustImport(t, im, registry.Host+"/team/app:1", images)
	if got, want := kinds(registry), "1 × GET /referrers/D, 1 × GET /tags/list, 1 × HEAD /manifests/T"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A digest that many tags lead to is looked at once.
func TestManyTagsOfOneDigestAreSearchedOnce(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	im := newImporter(t, importer.Options{Signatures: newFinder(t), SignaturesAge: time.Hour})
	for i := range 40 {
		registry.Push(fmt.Sprint("team/app:", i), image)
	}
	for i := range 40 {
		mustImport(t, im, fmt.Sprint(registry.Host, "/team/app:", i), images)
	}
	if got, want := kinds(registry), "1 × GET /blobs/D, 40 × GET /manifests/T, 1 × GET /referrers/D, 1 × GET /tags/list, 1 × GET /v2/"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// An image that is not stored any more is searched again, and one whose search failed.
func TestSearchesAreOfWhatIsStored(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &registrytest.Images{}
	digest := registry.Push("team/app:1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Signatures: newFinder(t), SignaturesAge: time.Hour})
	mustImport(t, im, registry.Host+"/team/app:1", images)
	images.Delete(digest)
	registry.Reset()
	mustImport(t, im, registry.Host+"/team/app:1", images)
	if n := registry.Count("/referrers/"); n != 1 {
		t.Errorf("%d searches of an image that was deleted", n)
	}
	registry.Inject("/referrers/", 1, registrytest.Status(403, "DENIED"))
	im = newImporter(t, importer.Options{Signatures: newFinder(t), SignaturesAge: time.Hour})
	if result := mustImport(t, im, registry.Host+"/team/app:1", images); len(result.Warnings) == 0 {
		t.Error("a search that is denied is not told of")
	}
	registry.Reset()
	mustImport(t, im, registry.Host+"/team/app:1", images)
	if n := registry.Count("/referrers/"); n != 1 {
		t.Errorf("%d searches after one that failed", n)
	}
}

// Twenty-nine requests that were refused at once asked for twenty-nine tokens.
func TestAllThatWaitForATokenAskOnce(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
	for i := range 29 {
		registry.Push(fmt.Sprint("team/app:", i), newImage(t, sample.Spec{}))
	}
	im := newImporter(t, importer.Options{Keychain: secret, Limits: pull.Limits{HostConcurrency: 29}})
	all := func() {
		var imports sync.WaitGroup
		for i := range 29 {
			imports.Go(func() { mustImport(t, im, fmt.Sprint(registry.Host, "/team/app:", i), &registrytest.Images{}) })
		}
		imports.Wait()
	}
	for round := range 3 {
		registry.Reset()
		all()
		if n := registry.Count("/token"); n != 1 {
			t.Errorf("round %d: %d tokens were asked for, want 1", round, n)
		}
		registry.RevokeTokens()
	}
}

// A token server that fails is asked again by the next who waits, and a token that is refused is
// not given out.
func TestTokensThatFailAreNotShared(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t, registrytest.WithAuth(with("bearer", nil)))
	registry.Push("team/app:1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Keychain: secret, Limits: pull.Limits{Attempts: 1}})
	mustImport(t, im, registry.Host+"/team/app:1", &registrytest.Images{})
	registry.RevokeTokens()
	registry.Inject(" /token", 1, registrytest.Status(500, "UNKNOWN"))
	if _, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:1"), &registrytest.Images{}); err == nil {
		t.Error("an import without a token does not fail")
	}
	mustImport(t, im, registry.Host+"/team/app:1", &registrytest.Images{})
}
