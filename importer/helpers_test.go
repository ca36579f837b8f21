package importer_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// loopback allows registries to lead to others in the same process.
var loopback = guard.Networks{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// newImporter is New without the credentials of whoever runs the test.
func newImporter(t testing.TB, o importer.Options) *importer.Importer {
	t.Helper()
	if o.Keychain == nil {
		o.Keychain = authn.NewMultiKeychain()
	}
	im, err := importer.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	t.Cleanup(func() {
		if n := im.Locked(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
	return im
}

func newImage(t testing.TB, spec sample.Spec) v1.Image {
	t.Helper()
	image, err := sample.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func newIndex(t testing.TB, spec sample.Spec, attested bool, platforms ...string) v1.ImageIndex {
	t.Helper()
	index, err := sample.MultiPlatform(spec, attested, platforms...)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

var hex64 = strings.Repeat("0123456789abcdef", 4)

// parse reads a reference.
func parse(t testing.TB, s string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// known are the references in an Image's annotations.
func known(image *imagev1.Image) []string {
	var out []string
	for _, ref := range annotation.Known(image.Annotations) {
		out = append(out, ref.String())
	}
	return out
}

// mustImport fails the test if the import does.
func mustImport(t testing.TB, im *importer.Importer, reference string, images importer.Images) *importer.Result {
	t.Helper()
	result, err := im.Import(t.Context(), parse(t, reference), images)
	if err != nil {
		t.Fatalf("importing %s: %v", reference, err)
	}
	return result
}

// wantReason checks that err has a reason, and is complete.
func wantReason(t testing.TB, err error, want pull.Reason) *pull.Error {
	t.Helper()
	var e *pull.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want an *importer.Error with reason %s", err, want)
	}
	if e.Reason != want {
		t.Fatalf("error is %v with reason %s, want %s", err, e.Reason, want)
	}
	if e.Host == "" || e.Repository == "" || e.Reference == "" {
		t.Errorf("error %q does not name host (%q), repository (%q) and reference (%q)", e, e.Host, e.Repository, e.Reference)
	}
	return e
}

func requests(r *registrytest.Registry) []string {
	var out []string
	for _, req := range r.Requests() {
		out = append(out, req.String())
	}
	return out
}

func digests(result *importer.Result) []string {
	var out []string
	for _, i := range result.Images {
		out = append(out, i.Image.Name)
	}
	return out
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// arrives tells of a request and answers nothing until the client is gone.
func arrives(arrived chan<- struct{}) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			arrived <- struct{}{}
			registrytest.StallHeaders()(next).ServeHTTP(w, req)
		})
	}
}

// readKnown reads an Image as a server does for an answer about it; nil if there is none.
func readKnown(ctx context.Context, images *registrytest.Images, name string) (*imagev1.Image, error) {
	stored, err := images.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m, err := manifest.Of(stored)
	if err != nil {
		return nil, err
	}
	for _, child := range m.Children {
		stored.DockerImageManifests = append(stored.DockerImageManifests, imagev1.ImageManifest{Digest: child.Digest})
	}
	if config, err := manifest.ConfigOf(stored); err == nil && stored.DockerImageConfig != "" {
		metav1.SetMetaDataAnnotation(&stored.ObjectMeta, annotation.Platform, config.Platform.String())
	}
	return stored, nil
}

// recordIn records an item in images, as a server does.
func recordIn(ctx context.Context, images *registrytest.Images, item *record.Item) (*record.Result, error) {
	if item.Tag != nil {
		ref, err := item.Tag.Parse()
		if err != nil {
			return nil, err
		}
		tag, err := record.GetTag(ctx, ref, images)
		if err != nil {
			return nil, err
		}
		if item.Tag.Asked {
			led, _ := tags.Now(tag)
			stored, err := readKnown(ctx, images, led)
			answer := item.Tag.Answer(ref, tag, stored)
			answer.Alone = tag == nil && hasNoImage(ctx, images, ref.Bare())
			return answer, err
		}
		return item.Tag.Store(ctx, images, ref, tag, time.Now())
	}
	if item.Repository != nil {
		repository, err := item.Repository.Parse()
		if err != nil {
			return nil, err
		}
		known, err := images.ListTags(ctx, metav1.ListOptions{FieldSelector: selectors.TagRepository + "=" + repository.Name(), Limit: record.MaxTags})
		return item.Repository.Answer(repository, known, hasNoImage(ctx, images, repository)), err
	}
	repository, err := reference.ParseRepository(item.Image.Repository)
	if err != nil {
		return nil, err
	}
	if item.Image.Known {
		stored, err := readKnown(ctx, images, item.Image.Name)
		if err != nil {
			return nil, err
		}
		return item.Image.Answer(stored, repository), nil
	}
	image, action, err := record.Store(ctx, images, nil, item.Image.Fresh(), repository, item.Image.Searched)
	if err != nil {
		return nil, err
	}
	return &record.Result{Action: action, Metadata: &image.ObjectMeta}, nil
}

// hasNoImage reports whether no Image is recorded under a repository.
func hasNoImage(ctx context.Context, images *registrytest.Images, repository reference.Reference) bool {
	return !slices.ContainsFunc(images.Names(), func(name string) bool {
		image, err := images.Get(ctx, name, metav1.GetOptions{})
		return err == nil && annotation.WasIn(image.Annotations, image.DockerImageReference, repository)
	})
}
