package image

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// maxNamesWithPackage is how many names of images with a package are read at a time.
const maxNamesWithPackage = 500

// listWithPackage lists the images that have a package, and warns about images whose packages are
// not known. It finds the images by the index of ImagePackages.
func (r *REST) listWithPackage(ctx context.Context, store imageStore, options *internalversion.ListOptions) (runtime.Object, error) {
	if r.packages == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q is not supported for images: this server does not know packages", packageField))
	}
	if r.answers != nil {
		if lacks := r.answers.LacksPackages(ctx); lacks != "" {
			return nil, apierrors.NewForbidden(imagev1.Resource("images"), "", fmt.Errorf("which images have a package is in imagepackages, and %s", lacks))
		}
	}
	wanted, asked := "", 0
	for _, q := range options.FieldSelector.Requirements() {
		if q.Field != packageField {
			continue
		}
		if asked++; asked > 1 || q.Operator == selection.NotEquals {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q may be given once, and with =: of an image without an SBOM it is not known which packages it lacks", packageField))
		}
		wanted = q.Value
	}
	rest, err := options.FieldSelector.Transform(func(name, value string) (string, string, error) {
		if name == packageField {
			return "", "", nil
		}
		return name, value, nil
	})
	if err != nil {
		return nil, err
	}
	if options.Continue == "" {
		if err := r.warnOfUnlisted(ctx); err != nil {
			return nil, err
		}
	}
	others := *options
	others.FieldSelector = rest
	most := maxNamesWithPackage
	if 0 < options.Limit && options.Limit < maxNamesWithPackage {
		most = int(options.Limit)
	}
	return r.listNames(ctx, store, &others, func(ctx context.Context, from string, revision int64) ([]string, int64, string, error) {
		return r.packages.With(ctx, wanted, from, revision, most)
	})
}

// warnOfUnlisted warns of images whose packages are not known.
func (r *REST) warnOfUnlisted(ctx context.Context) error {
	obj, err := r.Store.ListPredicate(ctx, r.Facts.predicate(labels.Everything(), fields.Everything()), &internalversion.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	listed, err := r.packages.Count(ctx)
	if err != nil {
		return err
	}
	partly, err := r.packages.Partly(ctx)
	if text := packages.Unread(pages.Total(obj.(*imagev1.ImageList)), listed, partly); text != "" {
		warning.AddWarning(ctx, "", text)
	}
	return err
}

// forgetTime bounds the time to delete the ImagePackages of a deleted image.
const forgetTime = 10 * time.Second

// forget deletes the packages of a deleted image. What stays, because the server was killed or the
// disk is full, names no image and is not shown.
func forget(packages Packages, image string) {
	ctx, cancel := context.WithTimeout(context.Background(), forgetTime)
	defer cancel()
	if err := packages.Forget(ctx, image); err != nil {
		slog.Warn("The packages of a deleted image stay", "image", image, "err", err)
	}
}
