package answers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/versions"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// parsePackage reads a package and a range of its versions, with an @ between. In a package URL,
// qualifiers and a subpath follow.
func parsePackage(text string) (q *packages.Query, in versions.Range, err error) {
	name, rest, isURL := text, "", strings.HasPrefix(text, "pkg:")
	if end := strings.IndexAny(text, "?#"); isURL && end >= 0 {
		name, rest = text[:end], text[end:]
	}
	if at := strings.LastIndexByte(name, '@'); at > 0 {
		version := name[at+1:]
		name = name[:at]
		if isURL {
			if version, err = url.PathUnescape(version); err != nil {
				return nil, in, err
			}
		}
		if in, err = versions.Parse(version); err != nil {
			return nil, in, err
		}
	}
	q, err = packages.ParseQuery(name + rest)
	return q, in, err
}

// withPackage finds the images that have a package, and counts the images whose packages are not
// known.
func (f *projection) withPackage(ctx context.Context) error {
	q, in, err := parsePackage(f.spec.Package)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := f.mayListPackages(); err != nil {
		return err
	}
	began, revision := time.Now(), int64(0) // of a real clock: it measures how long this takes
	if err := f.unlisted(ctx); err != nil {
		return err
	}
	for from, first := "", true; first || from != ""; first = false {
		at, more, err := f.pageOfPackage(ctx, q, in, from, revision)
		if err != nil {
			return err
		}
		if time.Since(began) > maxImpact && more != "" {
			f.doubt("images", fmt.Errorf("there was time for %s with the package, and there are more", table.Quantity(f.status.Summary.Examined, "image")))
			f.complete = false
			break
		}
		revision, from = at, more
	}
	return nil
}

// mayListPackages is an error if the caller may not, or if there are none.
func (f *projection) mayListPackages() error {
	if f.Packages == nil {
		return apierrors.NewBadRequest("this server does not know which packages images have")
	}
	if lacks := f.rights.listPackages; lacks != "" {
		return apierrors.NewForbidden(GroupVersion.WithResource(ImpactResource).GroupResource(), "", fmt.Errorf("which images have a package is in imagepackages, and %s", lacks))
	}
	return nil
}

// pageOfPackage examines a page of images that have a package. It releases the memory of the page
// when it returns.
func (f *projection) pageOfPackage(ctx context.Context, q *packages.Query, in versions.Range, from string, revision int64) (at int64, more string, err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	f.before.read = 0
	names, at, more, err := f.Packages.With(ctx, q.String(), from, revision, maxWithPackage)
	if err != nil {
		return 0, "", err
	}
	for _, name := range names {
		f.status.Summary.Examined++
		if err := f.ofPackage(ctx, name, q, in); err != nil {
			return 0, "", err
		}
	}
	return at, more, ctx.Err()
}

// unlisted counts the images without a package list, and names the running digests among them.
func (f *projection) unlisted(ctx context.Context) error {
	obj, err := f.Images.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	all := pages.Total(obj.(*imagev1.ImageList))
	listed, err := f.Packages.Count(ctx)
	if err != nil {
		return err
	}
	partly, err := f.Packages.Partly(ctx)
	if err != nil {
		return err
	}
	f.status.Summary.Unlisted = int32(max(0, all-listed))
	if text := packages.Unread(all, listed, partly); text != "" {
		f.doubt("packages", errors.New(text))
	}
	running, unread := f.Use.Digests(), 0
	for _, digest := range running {
		known, err := f.Packages.Known(ctx, digest)
		if err != nil {
			return err
		}
		if !known {
			unread++
		}
	}
	if unread > 0 {
		f.doubt("packages", fmt.Errorf("pods run or workloads need %s, and no SBOM, or only a part, was read for %d of them, so it is not known whether they have the package", table.Quantity(len(running), "digest"), unread))
	}
	return f.unstored(ctx, f.Packages.Known)
}

// ofPackage adds the rows of one image that has a package in a version of the range, or may have.
func (f *projection) ofPackage(ctx context.Context, digest string, q *packages.Query, in versions.Range) error {
	obj, err := f.Packages.Get(ctx, digest, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	list := obj.(*packages.ImagePackages)
	found, err := q.In(list)
	if err != nil {
		return err
	}
	image, err := f.before.image(ctx, digest)
	if err != nil || image == nil {
		return err
	}
	effect := MayContain
	var has []ImpactPackage
	var sources []*packages.Source // of these
	for i := range found {
		p := &found[i]
		typ, version := p.Comparable()
		is, err := in.Has(typ, version)
		if err == nil && !is {
			continue
		}
		row := ImpactPackage{Name: p.Name, Version: version, PURL: p.PURL, License: p.License, Document: p.Source.Blob}
		if err != nil {
			row.Unknown = whyNot(err)
		} else {
			effect = Contains
		}
		if len(has) == maxPackages {
			continue
		}
		has, sources = append(has, row), append(sources, p.Source)
	}
	if len(has) == 0 {
		return nil
	}
	if err := f.leadingTo(ctx, digest); err != nil {
		return err
	}
	return f.touchAll(ctx, image, effect, func(at place, row *ImpactRow) bool {
		row.Packages, row.Statements = slices.Clone(has), f.statements(ctx, image, at.ref, list)
		for i, source := range sources {
			row.Packages[i].Vouched, row.Packages[i].VouchedBy = f.vouched(ctx, image, at.ref, source)
		}
		return true
	})
}

// statements returns the statements of VEX documents about an image, for one of its references.
func (f *projection) statements(ctx context.Context, image *imagev1.Image, asked reference.Reference, list *packages.ImagePackages) (all []ImpactStatement) {
	for i := range list.Sources {
		source := &list.Sources[i]
		for _, s := range source.Statements {
			if len(all) == maxPackages {
				return all
			}
			row := ImpactStatement{Vulnerability: s.Vulnerability, Status: s.Status, Author: source.Author}
			row.Vouched, row.VouchedBy = f.vouched(ctx, image, asked, source)
			all = append(all, row)
		}
	}
	return all
}

// vouched returns who vouches for a document of an image under a reference.
func (f *projection) vouched(ctx context.Context, image *imagev1.Image, asked reference.Reference, source *packages.Source) (verified, by string) {
	v := source.Vouched(image, asked, func(digest string) (*imagev1.Image, error) { return f.before.image(ctx, digest) })
	if v.Verified == verdicts.VerifiedTrue {
		return v.Verified, v.By
	}
	return v.Verified, ""
}
