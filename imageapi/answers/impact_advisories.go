package answers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/advisories"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// readAdvisories reads the advisories of the act, and notes which of them cannot be compared with
// SBOMs.
func (f *projection) readAdvisories() (*advisories.Set, error) {
	set := advisories.NewSet()
	zipped, err := gzip.NewReader(bytes.NewReader(f.spec.Advisories))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the advisories are not packed by gzip: %v", err))
	}
	left := &io.LimitedReader{R: zipped, N: maxAdvisoryBytes + 1}
	err = advisories.Read(left, func(a *advisories.Advisory, err error) error {
		if err == nil {
			err = set.Add(a)
		}
		if err != nil {
			f.status.Summary.Unchecked++
			f.complete = false
			f.doubt("advisories", fmt.Errorf("of some advisories it is not known whether they are about an image: %w", err))
		}
		return nil
	})
	if left.N == 0 {
		err = fmt.Errorf("they have more than %d MiB", maxAdvisoryBytes>>20)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(printable.Line(fmt.Sprintf("the advisories cannot be read: %v", err), maxText))
	}
	return set, nil
}

// withAdvisories finds the images that have a package which advisories are about.
func (f *projection) withAdvisories(ctx context.Context) error {
	if err := f.mayListPackages(); err != nil {
		return err
	}
	set, err := f.readAdvisories()
	if err != nil {
		return err
	}
	if f.spec.Named {
		f.named = &ImpactTouched{}
	}
	next := f.Packages.Lists
	if f.spec.Image != "" {
		digests, err := f.ofImage(ctx)
		if err != nil {
			return err
		}
		next = f.listsOf(digests)
	} else if names, ok := set.Names(maxAdvisoryNames); ok {
		digests, err := f.having(ctx, names)
		if err != nil {
			return err
		}
		next = f.listsOf(digests)
	}
	began := time.Now() // of a real clock: it measures how long this takes
	for after := f.spec.Continue; ; {
		if time.Since(began) > maxImpact/2 { // then come the fixes
			f.status.Continue = after
			break
		}
		last, err := f.pageOfAdvisories(ctx, set, after, next)
		if err != nil {
			return err
		}
		if last == "" {
			break
		}
		after = last
	}
	f.cut()
	if err := f.fixes(ctx, set, began); err != nil || f.spec.Image != "" {
		return err
	}
	return f.unlisted(ctx)
}

// listsOf returns pages of the package lists of some digests, which are sorted.
func (f *projection) listsOf(digests []string) func(context.Context, string, int) ([]packages.ImagePackages, error) {
	return func(ctx context.Context, after string, most int) (all []packages.ImagePackages, err error) {
		at, found := slices.BinarySearch(digests, after)
		if found {
			at++
		}
		for _, digest := range digests[at:min(at+most, len(digests))] {
			list, err := f.listOf(ctx, digest)
			if err != nil {
				return nil, err
			}
			if list == nil { // it was deleted, or has no SBOM
				list = &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}}
			}
			all = append(all, *list)
		}
		return all, nil
	}
}

// ofImage returns the digests, sorted, of the one image that the review is about, or of the
// platforms that it lists. It counts those whose packages are not known.
func (f *projection) ofImage(ctx context.Context) ([]string, error) {
	m, err := f.before.resolve(ctx, Question{Reference: f.spec.Image})
	switch {
	case err != nil:
		return nil, err
	case m.state == Invalid || m.state == Ambiguous:
		return nil, apierrors.NewBadRequest(f.meaningOf(m))
	case m.image == nil:
		f.meansNothing(m)
		return nil, nil
	}
	digests := runnable(m.image)
	slices.Sort(digests)
	for _, digest := range digests {
		known, err := f.Packages.Known(ctx, digest)
		if err != nil {
			return nil, err
		}
		if !known {
			f.status.Summary.Unlisted++
			f.doubt("packages", fmt.Errorf("no SBOM, or only a part, was read for %s, so it is not known whether it has the package", digest))
		}
	}
	return digests, nil
}

// runnable returns the digest of an image, or those of the images that an index lists: not of
// attestations, as BuildKit lists them.
func runnable(image *imagev1.Image) (digests []string) {
	if len(image.DockerImageManifests) == 0 {
		return []string{image.Name}
	}
	for _, m := range image.DockerImageManifests {
		if m.OS != "unknown" {
			digests = append(digests, m.Digest)
		}
	}
	return digests
}

// having returns the digests of images that have packages of some names, sorted.
func (f *projection) having(ctx context.Context, names []string) ([]string, error) {
	all := map[string]bool{}
	for _, name := range names {
		if _, err := packages.ParseQuery(name); err != nil {
			continue // no package has such a name
		}
		for from, revision, first := "", int64(0), true; first || from != ""; first = false {
			page, at, more, err := f.Packages.With(ctx, name, from, revision, maxWithPackage)
			if err != nil {
				return nil, err
			}
			for _, digest := range page {
				all[digest] = true
			}
			from, revision = more, at
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// listOf returns the list of an image's packages, nil if there is none.
func (f *projection) listOf(ctx context.Context, digest string) (*packages.ImagePackages, error) {
	obj, err := f.Packages.Get(ctx, digest, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*packages.ImagePackages), nil
}

// pageOfAdvisories examines a page of images. It returns the digest of the last one, "" if there
// was none. It releases the memory of the page when it returns.
func (f *projection) pageOfAdvisories(ctx context.Context, set *advisories.Set, after string, next func(context.Context, string, int) ([]packages.ImagePackages, error)) (last string, err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	f.before.read = 0
	lists, err := next(ctx, after, maxWithPackage)
	if err != nil {
		return "", err
	}
	for i := range lists {
		list := &lists[i]
		f.status.Summary.Examined++
		last = list.Name
		found, err := set.Find(list)
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			continue
		}
		image, err := f.before.image(ctx, list.Name)
		if err != nil {
			return "", err
		}
		if image == nil {
			continue
		}
		if err := f.leadingTo(ctx, list.Name); err != nil {
			return "", err
		}
		vex := statementsOf(list)
		if err := f.touchAll(ctx, image, Contains, func(at place, row *ImpactRow) bool {
			f.advise(ctx, image, at, row, found, vex)
			return true
		}); err != nil {
			return "", err
		}
	}
	return last, ctx.Err()
}

// said is a VEX document's statement about a vulnerability.
type said struct {
	*packages.Source
	packages.Statement
}

// statementsOf are the statements about an image by the vulnerability, in lower case.
func statementsOf(list *packages.ImagePackages) map[string][]said {
	all := map[string][]said{}
	for i := range list.Sources {
		for _, s := range list.Sources[i].Statements {
			name := strings.ToLower(s.Vulnerability)
			all[name] = append(all[name], said{&list.Sources[i], s})
		}
	}
	return all
}

// advise adds the advisories that concern an image to a row.
func (f *projection) advise(ctx context.Context, image *imagev1.Image, at place, row *ImpactRow, found []advisories.Finding, vex map[string][]said) {
	type voucher struct{ vouched, by string }
	asked := map[*packages.Source]voucher{}
	vouched := func(source *packages.Source) (string, string) {
		v, ok := asked[source]
		if !ok {
			v.vouched, v.by = f.vouched(ctx, image, at.ref, source)
			asked[source] = v
		}
		return v.vouched, v.by
	}
	row.Effect = NotAffected
	for i := range found {
		finding := &found[i]
		a := ImpactAdvisory{
			ID: finding.ID, Aliases: finding.Aliases[:min(len(finding.Aliases), maxPackages)], Effect: Contains, Fixed: finding.Fixed,
			Package: ImpactPackage{Name: finding.Name, Version: finding.Version, PURL: finding.PURL, License: finding.License, Document: finding.Source.Blob, Unknown: printable.Line(finding.Unknown, maxText)},
		}
		if finding.Unknown != "" {
			a.Effect = MayContain
		}
		a.Package.Vouched, a.Package.VouchedBy = vouched(finding.Source)
		var cleared bool
		if a.Statement, cleared = saidOf(finding.Advisory, vex, vouched); cleared {
			a.Effect = NotAffected
		}
		row.AddAdvisories(a)
	}
}

// effects of advisories, the worst first.
var effects = []Effect{Contains, MayContain, NotAffected}

// AddAdvisories adds advisories to a row, which keeps the first ones in their order, and the worst
// effect of all.
func (r *ImpactRow) AddAdvisories(all ...ImpactAdvisory) {
	for i := range all {
		r.Effect = effects[min(slices.Index(effects, r.Effect), slices.Index(effects, all[i].Effect))]
	}
	r.Advisories = append(r.Advisories, all...)
	if len(r.Advisories) == 1 {
		return
	}
	slices.SortStableFunc(r.Advisories, func(a, b ImpactAdvisory) int {
		return cmp.Or(cmp.Compare(slices.Index(effects, a.Effect), slices.Index(effects, b.Effect)), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Package.Name, b.Package.Name), cmp.Compare(a.Package.Version, b.Package.Version))
	})
	if more := len(r.Advisories) - maxAdvisories; more > 0 {
		r.OmittedAdvisories += int32(more)
		r.Advisories = r.Advisories[:maxAdvisories]
	}
}

// saidOf returns a statement of VEX documents about an advisory. cleared is true if a trusted
// document states that the image is not affected, under one of the advisory's names or under each
// name that the advisory takes over, and no trusted document contradicts it.
func saidOf(a *advisories.Advisory, vex map[string][]said, vouched func(*packages.Source) (string, string)) (statement *ImpactStatement, cleared bool) {
	if len(vex) == 0 {
		return nil, false
	}
	disputed := false
	clears := func(name string) (clears bool) {
		for _, s := range vex[strings.ToLower(name)] {
			found := &ImpactStatement{Vulnerability: s.Vulnerability, Status: s.Status, Author: s.Author}
			found.Vouched, found.VouchedBy = vouched(s.Source)
			not := s.Status == "not_affected" || s.Status == "fixed"
			if statement == nil || statement.Vouched != verdicts.VerifiedTrue {
				statement = found
			}
			if found.Vouched == verdicts.VerifiedTrue {
				clears, disputed = clears || not, disputed || !not
			}
		}
		return clears
	}
	for _, name := range a.Names() {
		cleared = clears(name) || cleared
	}
	upstream := len(a.Upstream) > 0
	for _, name := range a.Upstream {
		upstream = clears(name) && upstream
	}
	return statement, (cleared || upstream) && !disputed
}

// cleared returns the rows that are touched. It shows and counts those apart that are not affected
// by a VEX document.
func (f *projection) cleared(image *imagev1.Image, rows []ImpactRow, by *runners) []ImpactRow {
	return slices.DeleteFunc(rows, func(row ImpactRow) bool {
		if row.Effect != NotAffected {
			return false
		}
		row.Labels, row.Running = ownersOf(image), runningOf(f.podsOf(by, &row), by.complete)
		if f.status.Summary.NotAffected++; f.named != nil {
			f.named.NotAffected = append(f.named.NotAffected, row.Name())
		}
		if f.shows(&row) {
			f.status.Rows = append(f.status.Rows, row)
		} else {
			f.omitted++
		}
		return true
	})
}

// fix is an image to which a tag leads.
type fix struct {
	ref    reference.Reference
	digest string
	built  time.Time
	moved  time.Time
	about  map[string]bool // the advisories that are about it, or may be
}

// fixes names images that have a fix in the rows that are left.
func (f *projection) fixes(ctx context.Context, set *advisories.Set, began time.Time) error {
	known, whole := map[string][]fix{}, map[string]bool{}
	for i := range f.status.Rows {
		row := &f.status.Rows[i]
		if row.Effect == NotAffected {
			continue
		}
		ref, err := reference.Parse(row.Reference)
		if err != nil {
			continue
		}
		if time.Since(began) > maxImpact {
			f.doubt("fixedBy", errors.New("there was no time to look for images with a fix for all references"))
			return nil
		}
		repository := ref.Name()
		all, ok := known[repository]
		if !ok {
			if all, whole[repository], err = f.tagsWithFixes(ctx, set, repository); err != nil {
				return err
			}
			known[repository] = all
		}
		for j := range row.Advisories {
			a := &row.Advisories[j]
			if at := slices.IndexFunc(all, func(x fix) bool { return x.digest != row.Image && !x.about[a.ID] }); at >= 0 && a.Effect != NotAffected {
				a.FixedBy = all[at].ref.String()
			} else if a.Effect != NotAffected && !whole[repository] {
				f.doubt("fixedBy", fmt.Errorf("of %s, only the newest %d tags were looked at for an image with a fix", repository, maxFixes))
			}
		}
	}
	return nil
}

// tagsWithFixes returns the tags of a repository whose advisories are known, the newest images
// first. whole is false if it has further tags.
func (f *projection) tagsWithFixes(ctx context.Context, set *advisories.Set, repository string) (all []fix, whole bool, err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	f.before.read = 0
	if f.rights.listTags != "" {
		return nil, true, nil // the row gives this reason for what is unknown
	}
	tagged, more, err := f.before.tagged(ctx, selectors.TagRepository, repository, maxHistories)
	if err != nil {
		return nil, false, err
	}
	for i := range tagged {
		ref, ok := tags.Reference(&tagged[i])
		if now, _ := tags.Now(&tagged[i]); ok && now != "" {
			all = append(all, fix{ref: ref, digest: now, moved: tagged[i].Status.Items[0].Created.Time})
		}
	}
	slices.SortFunc(all, func(a, b fix) int { return cmp.Or(b.moved.Compare(a.moved), cmp.Compare(a.ref.Tag, b.ref.Tag)) })
	var listed []fix
	for _, x := range all[:min(len(all), maxFixes)] {
		image, err := f.before.image(ctx, x.digest)
		if err != nil {
			return nil, false, err
		}
		if image == nil {
			continue
		}
		if metadata, err := manifest.Metadata(image); err == nil {
			x.built = metadata.Created.Time
		}
		if x.about, err = f.aboutImage(ctx, set, image); err != nil {
			return nil, false, err
		}
		if x.about != nil {
			listed = append(listed, x)
		}
	}
	slices.SortStableFunc(listed, func(a, b fix) int { return b.built.Compare(a.built) })
	return listed, !more && len(all) <= maxFixes, nil
}

// aboutImage returns the ids of the advisories that are about an image, or about an image that it
// lists, or may be; nil if that is not known.
func (f *projection) aboutImage(ctx context.Context, set *advisories.Set, image *imagev1.Image) (map[string]bool, error) {
	about := map[string]bool{}
	for _, digest := range runnable(image) {
		list, err := f.listOf(ctx, digest)
		if err != nil {
			return nil, err
		}
		if list == nil || !list.Known() {
			return nil, nil
		}
		found, err := set.Find(list)
		if err != nil {
			return nil, err
		}
		for _, finding := range found {
			about[finding.ID] = true
		}
	}
	return about, nil
}
