package image

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// An image is built on a base if the annotations of its manifest name the base, or if its layers
// begin with the base's layers.

// maxBases bounds the images of a base that layers are compared with: an index has one for each
// platform.
const maxBases = 32

// How an image is known to be built on a base.
const (
	byAnnotation = "annotation"
	byLayers     = "layers"
)

// bases are the images of a base that a selector names.
type bases struct {
	value  string // of the selector
	images []*imagev1.Image
}

// annotatedBases are the values of the field base that an image's annotations give it: a digest, a
// reference, and the repository of that.
func annotatedBases(image *imagev1.Image) (all []string) {
	name, digest := manifest.BaseOf(image)
	if reference.IsDigest(digest) {
		all = append(all, digest)
	}
	if ref := manifest.BaseReference(name); ref.Host != "" {
		all = append(all, ref.String(), ref.Name())
		if ref.Digest != "" {
			all = append(all, ref.Digest)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// canonicalBase checks a value of the field base: a digest, or a reference, which it completes like
// values of the field References.
func canonicalBase(value string) (string, error) {
	if reference.IsDigest(value) {
		return value, nil
	}
	ref, err := reference.Parse(value)
	if err != nil {
		return "", fmt.Errorf("field label %q of images is a reference or a whole digest: %w", baseField, err)
	}
	if ref.Digest != "" {
		return ref.Digest, nil
	}
	return ref.String(), nil
}

// basesIn reads the images of the base that options name; nil if they name none. A tag with a
// digest, which no request can name, is one whose digest the caller has found: the options that
// basesIn returns select by the tag.
func (r *REST) basesIn(ctx context.Context, options *internalversion.ListOptions) (*bases, *internalversion.ListOptions, error) {
	var b *bases
	for _, q := range options.FieldSelector.Requirements() {
		if q.Field != baseField {
			continue
		}
		if b != nil || q.Operator == selection.NotEquals || q.Value == "" {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q may be given once, and with =", baseField))
		}
		b = &bases{value: q.Value}
	}
	if b == nil {
		return nil, options, nil
	}
	digest := b.value
	if !reference.IsDigest(digest) {
		ref, err := reference.Parse(b.value)
		if err != nil || ref.Tag == "" { // a repository
			warning.AddWarning(ctx, "", fmt.Sprintf("%s=%s is a whole repository: only images whose annotations name it are listed; of a tag or digest, layers are compared, too", baseField, b.value))
			return b, options, nil
		}
		if digest = ref.Digest; digest != "" {
			ref.Digest = ""
			byTag := *options
			byTag.FieldSelector, err = options.FieldSelector.Transform(func(field, value string) (string, string, error) {
				if field == baseField {
					value = ref.String()
				}
				return field, value, nil
			})
			b.value, options = ref.String(), &byTag
		} else if r.answers != nil {
			_, digest, _, err = r.answers.Leads(ctx, ref)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return b, options, r.readBases(ctx, b, digest)
}

// readBases reads the image of a base, or those that it lists.
func (r *REST) readBases(ctx context.Context, b *bases, digest string) error {
	var whole *imagev1.Image
	if digest != "" {
		var err error
		if whole, err = r.get(ctx, digest); err != nil {
			return err
		}
	}
	if whole == nil {
		warning.AddWarning(ctx, "", fmt.Sprintf("the layers of the base %s are not known here: only images whose annotations name it are listed", b.value))
		return nil
	}
	if len(whole.DockerImageLayers) > 0 {
		b.images = append(b.images, whole)
	}
	platforms := listed(whole)
	if len(platforms) > maxBases {
		warning.AddWarning(ctx, "", fmt.Sprintf("the base %s lists %d images: the layers of the first %d are compared", b.value, len(platforms), maxBases))
		platforms = platforms[:maxBases]
	}
	missing := 0
	for _, platform := range platforms {
		image, err := r.get(ctx, platform)
		if err != nil {
			return err
		}
		if image == nil {
			missing++
		} else if len(image.DockerImageLayers) > 0 {
			b.images = append(b.images, image)
		}
	}
	if missing > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("the base %s lists %s that the server does not store, so images with their layers may be missing", b.value, table.Quantity(missing, "image")))
	}
	return nil
}

// by returns how an image is known to be built on the base; nil if it is not known to be.
func (b *bases) by(image *imagev1.Image) (by []string) {
	if slices.Contains(annotatedBases(image), b.value) {
		by = append(by, byAnnotation)
	}
	if b.under(image) {
		by = append(by, byLayers)
	}
	return by
}

// under reports whether the layers of another image begin with the base's layers.
func (b *bases) under(image *imagev1.Image) bool {
	begins := false
	for _, base := range b.images {
		if base.Name == image.Name {
			return false
		}
		begins = begins || manifest.BeginsWith(image, base)
	}
	return begins
}

// predicate is a predicate that also selects images by the layers of the base.
func (b *bases) predicate(of func(labels.Selector, fields.Selector) storage.SelectionPredicate) func(labels.Selector, fields.Selector) storage.SelectionPredicate {
	return func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
		p := of(label, field)
		attributes := p.GetAttrs
		p.GetAttrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			label, set, err := attributes(obj)
			if image, ok := obj.(*imagev1.Image); ok && err == nil && b.under(image) {
				key, value := selectors.Term(baseField, b.value)
				set[key] = value
			}
			return label, set, err
		}
		return p
	}
}

// listOn lists the images that are built on the base, from the index of annotations and the index
// of layers: a page has the images of both up to a name, each once.
func (b *bases) listOn(ctx context.Context, store imageStore, options *internalversion.ListOptions) (runtime.Object, error) {
	ways := []fields.Selector{options.FieldSelector}
	var tops []string
	for _, base := range b.images {
		top := base.DockerImageLayers[len(base.DockerImageLayers)-1].Name
		if !slices.Contains(tops, top) {
			tops = append(tops, top)
			ways = append(ways, fields.AndSelectors(options.FieldSelector, fields.OneTermEqualSelector(layerField, top)))
		}
	}
	label := labels.Everything()
	if options.LabelSelector != nil {
		label = options.LabelSelector
	}
	const prefix = "/" // of keys in continue tokens
	part, until, out := *options, "", &imagev1.ImageList{Items: []imagev1.Image{}}
	if options.Limit > 0 {
		part.Limit = options.Limit/int64(len(ways)) + 1 // most images are found by one way
	}
	seen := map[string]bool{}
	for _, way := range ways {
		part.FieldSelector = way
		obj, err := store.ListPredicate(ctx, store.predicate(label, way), &part)
		if err != nil {
			return nil, err
		}
		list := obj.(*imagev1.ImageList)
		if out.ResourceVersion == "" {
			out.ResourceVersion = list.ResourceVersion
			if part.Continue == "" { // a token has the revision
				part.ResourceVersion, part.ResourceVersionMatch = list.ResourceVersion, metav1.ResourceVersionMatchExact
			}
		}
		if list.Continue != "" {
			next, _, err := storage.DecodeContinue(list.Continue, prefix)
			if err != nil {
				return nil, err
			}
			if until == "" || next < until {
				until = next
			}
		}
		for i := range list.Items {
			if !seen[list.Items[i].Name] {
				seen[list.Items[i].Name] = true
				out.Items = append(out.Items, list.Items[i])
			}
		}
	}
	slices.SortFunc(out.Items, func(a, b imagev1.Image) int { return cmp.Compare(a.Name, b.Name) })
	if until != "" { // beyond it, one of the ways has more
		out.Items = slices.DeleteFunc(out.Items, func(image imagev1.Image) bool { return prefix+image.Name >= until })
	}
	if options.Limit > 0 && int64(len(out.Items)) > options.Limit {
		until = prefix + out.Items[options.Limit].Name
		out.Items = out.Items[:options.Limit]
	}
	if until == "" {
		return out, nil
	}
	revision, err := storage.APIObjectVersioner{}.ParseResourceVersion(out.ResourceVersion)
	if err != nil {
		return nil, err
	}
	out.Continue, err = storage.EncodeContinue(until, prefix, int64(revision))
	return out, err
}

// base is the base that an image's annotations name, or how the image is known to be built on the
// requested base.
func (r row) base() string {
	if r.bases != nil {
		return strings.Join(r.bases.by(r.Image), ",")
	}
	name, digest := manifest.BaseOf(r.Image)
	if ref := manifest.BaseReference(name); ref.Host != "" {
		return cutLeft(ref.String(), maxRepositoryCell)
	}
	return reference.ShortDigest(digest)
}
