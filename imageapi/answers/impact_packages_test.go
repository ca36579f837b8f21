package answers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/advisories"
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

func (l lists) Lists(_ context.Context, after string, most int) (all []packages.ImagePackages, _ error) {
	for _, digest := range slices.Sorted(maps.Keys(l.named)) {
		if digest > after && len(all) < most {
			list := l.named[digest].DeepCopy()
			list.Name = digest
			all = append(all, *list)
		}
	}
	return all, nil
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

func (r running) Runs() (digests, references []string) { return r.digests, nil }

func (r running) Pods(string, *imagev1.Image) (n int, complete bool) { return len(r.digests), true }

func (running) Users(string, *imagev1.Image, int) []string { return nil }

func (running) Keys(digest string, _ *imagev1.Image) []string { return []string{digest} }

// noContainers are the containers of no pod.
type noContainers struct{}

func (noContainers) Naming(context.Context, []string, int) ([]podimages.Container, bool, error) {
	return nil, true, nil
}

func (noContainers) InNamespace(context.Context, string, int) ([]podimages.Container, bool, error) {
	return nil, true, nil
}

// packageReview is a review of who has openssl in a version before 2.
func packageReview(l lists, digests ...string) *projection {
	a := &Answerer{Packages: l, Images: large{strings.Repeat(" ", 2<<20)}, Use: running{digests: digests}, Containers: noContainers{}}
	return &projection{Answerer: a, spec: &ImpactReviewSpec{Package: "openssl@<2"}, before: a.as(nil, nil), complete: true, unknowns: map[UnknownPart]bool{}, undecided: map[string]bool{}}
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
	if f.complete || len(f.undecided) != 2 {
		t.Errorf("of %v it is not known, complete: %v", f.undecided, f.complete)
	}
	for _, text := range []string{"need 3 digests, and no SBOM, or only a part, was read for 2 of them", "of some images only a part"} {
		found := false
		for u := range f.unknowns {
			found = found || strings.Contains(u.Reason, text)
		}
		if !found {
			t.Errorf("%v lacks %q", f.unknowns, text)
		}
	}
}

// An image is not affected by the word of somebody who is trusted, unless another who is says
// otherwise; of an advisory that takes several vulnerabilities over, that has to be said of all.
func TestStatementsOfAdvisories(t *testing.T) {
	t.Parallel()
	trusted, stranger := &packages.Source{Author: "Ann"}, &packages.Source{Author: "Bob"}
	vouched := func(source *packages.Source) (string, string) {
		if source == trusted {
			return "True", "ann@example.com"
		}
		return "Unsigned", ""
	}
	for _, tc := range []struct {
		upstream string // beside the alias CVE-1
		said     string // by whom, of what, what
		cleared  bool
		author   string
	}{
		{"", "", false, ""},
		{"", "Ann CVE-1 not_affected", true, "Ann"},
		{"", "Ann cve-1 fixed", true, "Ann"},
		{"", "Ann GHSA-1 not_affected", true, "Ann"},
		{"", "Ann CVE-2 not_affected", false, ""},
		{"", "Bob CVE-1 not_affected", false, "Bob"},
		{"", "Bob CVE-1 affected,Ann CVE-1 not_affected", true, "Ann"},
		{"", "Ann CVE-1 not_affected,Ann GHSA-1 affected", false, "Ann"},
		{"", "Ann CVE-1 under_investigation", false, "Ann"},
		{"CVE-2 CVE-3", "Ann CVE-2 not_affected", false, "Ann"},
		{"CVE-2 CVE-3", "Ann CVE-2 not_affected,Ann CVE-3 fixed", true, "Ann"},
		{"CVE-2 CVE-3", "Ann CVE-2 not_affected,Bob CVE-3 fixed", false, "Ann"},
	} {
		vex := map[string][]said{}
		for _, text := range strings.Split(tc.said, ",") {
			if fields := strings.Fields(text); len(fields) == 3 {
				source := stranger
				if fields[0] == "Ann" {
					source = trusted
				}
				name := strings.ToLower(fields[1])
				vex[name] = append(vex[name], said{source, packages.Statement{Vulnerability: fields[1], Status: fields[2]}})
			}
		}
		statement, cleared := saidOf(&advisories.Advisory{ID: "GHSA-1", Aliases: []string{"CVE-1"}, Upstream: strings.Fields(tc.upstream)}, vex, vouched)
		author := ""
		if statement != nil {
			author = statement.Author
		}
		if cleared != tc.cleared || author != tc.author {
			t.Errorf("%q, %q: cleared: %t, by %q", tc.upstream, tc.said, cleared, author)
		}
	}
}

// A row keeps the worst of its advisories, and counts the others.
func TestAdvisoriesOfRow(t *testing.T) {
	t.Parallel()
	row := ImpactRow{Effect: NotAffected}
	for i := range 3 * maxAdvisories {
		row.AddAdvisories(ImpactAdvisory{ID: fmt.Sprint(100 + i), Effect: []Effect{NotAffected, MayContain, Contains}[i%3]})
	}
	if row.Effect != Contains || len(row.Advisories) != maxAdvisories || row.OmittedAdvisories != 2*maxAdvisories {
		t.Errorf("%s, %d advisories and %d more", row.Effect, len(row.Advisories), row.OmittedAdvisories)
	}
	for i, a := range row.Advisories {
		if a.ID != fmt.Sprint(102+3*i) || a.Effect != Contains {
			t.Errorf("%d: %+v", i, a)
		}
	}
}

// A review of advisories about one image looks at its platforms, and says what is not known of it.
func TestAdvisoriesOfOneImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	affected, clean, unread, index := w.image("affected", repository), w.image("clean", repository), w.image("unread", repository), w.image("index", repository)
	w.images[index].DockerImageManifests = []imagev1.ImageManifest{{Digest: clean, OS: "linux"}, {Digest: affected, OS: "linux"}, {Digest: digestOf("attestation"), OS: "unknown"}}
	w.tag(repository+":index", index)
	w.tag(repository+":clean", clean)
	w.tag(repository+":unread", unread)
	listed := func(name string) *packages.ImagePackages {
		return &packages.ImagePackages{Sources: []packages.Source{{Format: packages.FormatSPDX, Packages: []packages.Package{{Name: name, Version: "1.0.0", PURL: "pkg:npm/" + name + "@1.0.0"}}}}}
	}
	named := map[string]*packages.ImagePackages{affected: listed("openssl"), clean: listed("zlib")}
	for digest, list := range named {
		list.Name = digest
	}
	a := w.answerer()
	a.Packages = lists{named: named}
	for text, want := range map[string]struct {
		touched string // the digest of the rows
		unknown string // the part that is not known
	}{
		repository + ":index":       {affected, ""},
		repository + "@" + affected: {affected, ""},
		clean:                       {"", ""},
		repository + ":clean":       {"", ""},
		repository + ":unread":      {"", "packages"},
		repository + ":absent":      {"", "act"},
		digestOf("absent"):          {"", "act"},
	} {
		status, err := a.Impact(w.as("ann"), &ImpactReviewSpec{Advisories: zipped(t, openssl), Image: text, Named: true})
		if err != nil {
			t.Fatal(err)
		}
		var touched, parts []string
		for _, row := range status.Rows {
			touched = append(touched, row.Image)
		}
		for _, u := range status.Unknowns {
			parts = append(parts, u.Part)
		}
		if got := strings.Join(slices.Compact(touched), " "); got != want.touched || strings.Join(parts, " ") != want.unknown {
			t.Errorf("%s: %q is touched and %q unknown, want %+v: %+v", text, got, parts, want, status.Unknowns)
		}
	}
	if errs := checkAct(&ImpactReviewSpec{Package: "openssl", Image: clean}); len(errs) != 1 {
		t.Errorf("an image without advisories: %v", errs)
	}
}
