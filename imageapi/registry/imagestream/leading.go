package imagestream

import (
	"context"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// Leading returns tags that lead to an image now, as namespace/stream:tag: tags of registries, and
// tags of streams that follow no registry. It stops once it has more than a refusal names. whole is
// false if there may be others.
func (r *Reader) Leading(ctx context.Context, image string) (leading []string, whole bool, err error) {
	field := fields.OneTermEqualSelector(selectors.TagImage, image)
	obj, err := r.Tags.ListPredicate(genericapirequest.WithNamespace(ctx, tags.Namespace), imagetag.Predicate(labels.Everything(), field), &internalversion.ListOptions{Limit: imageregistry.MaxNamed + 1})
	if err != nil {
		return nil, false, err
	}
	for i := range obj.(*imagev1.ImageTagList).Items {
		leading = append(leading, tags.Namespace+"/"+obj.(*imagev1.ImageTagList).Items[i].Name)
	}
	field = fields.OneTermEqualSelector(selectors.StreamLeads, image)
	obj, err = r.Streams.ListPredicate(genericapirequest.WithNamespace(ctx, metav1.NamespaceAll), r.predicate(labels.Everything(), field), &internalversion.ListOptions{Limit: imageregistry.MaxLooked})
	if err != nil {
		return nil, false, err
	}
	list := obj.(*imagev1.ImageStreamList)
	for i := range list.Items {
		stream := &list.Items[i]
		for j := range stream.Spec.Tags {
			if tag := &stream.Spec.Tags[j]; len(leading) <= imageregistry.MaxNamed && referredTo(tag) == image {
				leading = append(leading, stream.Namespace+"/"+stream.Name+":"+tag.Name)
			}
		}
		for j := range stream.Status.Tags {
			own := &stream.Status.Tags[j]
			if len(leading) > imageregistry.MaxNamed || len(own.Items) == 0 || own.Items[0].Image != image {
				continue
			}
			shown, err := r.Named(ctx, stream, own.Tag) // the tag may have moved since
			if err != nil {
				return nil, false, err
			}
			if slices.ContainsFunc(shown.Status.Tags, func(tag imagev1.NamedTagEventList) bool {
				return tag.Tag == own.Tag && len(tag.Items) > 0 && tag.Items[0].Image == image
			}) {
				leading = append(leading, stream.Namespace+"/"+stream.Name+":"+own.Tag)
			}
		}
	}
	return leading, list.Continue == "", nil
}
