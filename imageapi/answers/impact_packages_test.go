package answers

import (
	"context"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/packages"
)

// lists are lists of packages in memory: n of known images, all with openssl, and those by name.
type lists struct {
	n     int
	named map[string]*packages.ImagePackages
}

func (l lists) Get(_ context.Context, digest string, _ *metav1.GetOptions) (runtime.Object, error) {
	if list := l.named[digest]; list != nil {
		return list, nil
	}
	return nil, apierrors.NewNotFound(packages.GroupVersion.WithResource(packages.Resource).GroupResource(), digest)
}

func (l lists) Known(_ context.Context, digest string) (bool, error) {
	return l.named[digest] != nil && l.named[digest].Known(), nil
}

func (l lists) With(_ context.Context, _, from string, _ int64, most int) (names []string, at int64, more string, err error) {
	first := 0
	if from != "" {
		if _, err := fmt.Sscan(from, &first); err != nil {
			return nil, 0, "", err
		}
	}
	last := min(first+most, l.n)
	for range last - first {
		names = append(names, "has")
	}
	if last < l.n {
		more = fmt.Sprint(last)
	}
	return names, 1, more, nil
}

func (l lists) Count(context.Context) (int64, error) { return 1, nil }

func (l lists) Partly(context.Context) (bool, error) { return true, nil }

// large is the same image of 2 MiB under each name.
type large struct{ manifest string }

func (l large) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}, DockerImageManifest: l.manifest}, nil
}

func (l large) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return &imagev1.ImageList{Items: []imagev1.Image{{}}}, nil
}

// running says that some digests run.
type running struct {
	Use
	digests []string
}

func (r running) Digests() []string { return r.digests }

// packageReview is a review of who has openssl in a version before 2.
func packageReview(l lists, digests ...string) *projection {
	a := &Answerer{Packages: l, Images: large{strings.Repeat(" ", 2<<20)}, Use: running{digests: digests}}
	return &projection{Answerer: a, spec: &ImpactReviewSpec{Package: "openssl@<2"}, before: a.as(nil, nil), unknowns: map[UnknownPart]bool{}}
}

// A package that many images have is not too much to read: a page is read at a time.
func TestPackageOfManyImages(t *testing.T) {
	t.Parallel()
	has := &packages.ImagePackages{Sources: []packages.Source{{Format: packages.FormatSPDX, Packages: []packages.Package{{Name: "openssl", Version: "3", PURL: "pkg:npm/openssl@3"}}}}}
	f := packageReview(lists{3 * maxWithPackage, map[string]*packages.ImagePackages{"has": has}})
	if err := f.withPackage(t.Context()); err != nil || f.status.Summary.Examined != 3*maxWithPackage {
		t.Errorf("%d images, %v", f.status.Summary.Examined, err)
	}
}

// Of what runs it is not known which packages it has, if its SBOM could not be read.
func TestPackagesOfWhatRuns(t *testing.T) {
	t.Parallel()
	f := packageReview(lists{named: map[string]*packages.ImagePackages{
		"read":   {Sources: []packages.Source{{Format: packages.FormatSPDX}}},
		"unread": {Sources: []packages.Source{{Problem: "damaged"}}},
	}}, "read", "unread", "absent")
	if err := f.withPackage(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"of 2 of the 3 digests", "of some images only a part"} {
		found := false
		for u := range f.unknowns {
			found = found || strings.Contains(u.Reason, text)
		}
		if !found {
			t.Errorf("%v lacks %q", f.unknowns, text)
		}
	}
}
