package imagestream

import (
	"context"
	"slices"
	"strings"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Image returns an image as a stream shows it that knows it by a reference, without manifest and
// config; nil if there is none.
func (r *Reader) Image(ctx context.Context, name, dockerImageReference string) (*imagev1.Image, error) {
	image, err := r.stored(ctx, name, dockerImageReference)
	if err != nil || image == nil {
		return nil, err
	}
	image = r.OfStream(ctx, image, dockerImageReference)
	image.DockerImageManifest, image.DockerImageConfig = "", ""
	return image, nil
}

// OfStream returns an image as a stream shows it under a reference: with the facts of the
// reference's repository and the request's namespace. The image may also be in repositories that
// readers of the stream may not see. Signatures written by clients belong to no repository: callers
// who may read the Image get them here, too. OpenShift's registry serves them from here.
func (r *Reader) OfStream(ctx context.Context, image *imagev1.Image, dockerImageReference string) *imagev1.Image {
	shown := *image
	shown.DockerImageReference = dockerImageReference
	ref, err := reference.Parse(dockerImageReference)
	if err != nil {
		shown.Annotations, shown.Signatures = nil, nil
		return &shown
	}
	repository := ref.Bare()
	shown.Annotations = annotation.ShownIn(image.Annotations, repository, genericapirequest.NamespaceValue(ctx))
	if !annotation.IsElsewhere(image.Annotations, image.DockerImageReference, repository) {
		return &shown
	}
	// by the second half of a signature's name, the repositories that have brought it
	holders := map[string][]string{}
	for name, found := range annotation.Found(image.Annotations) {
		for _, signature := range found.Signatures {
			holders[signature] = append(holders[signature], name)
		}
	}
	mayRead := sync.OnceValue(func() bool {
		_, may := r.May(ctx, authorizer.AttributesRecord{Verb: "get", Resource: "images", Name: image.Name})
		return may
	})
	shown.Signatures = nil
	for i := range image.Signatures {
		_, half, _ := strings.Cut(image.Signatures[i].Name, "@")
		held := slices.Contains(holders[half], repository.String())
		clients := len(holders[half]) == 0 || slices.Contains(holders[half], annotation.Clients)
		if !held && !(clients && mayRead()) {
			continue
		}
		signature := image.Signatures[i]
		if !held || len(holders[half]) > 1 {
			// its conditions come from the repository with the worst verdict
			imageregistry.ClearVerdict(&signature)
		}
		shown.Signatures = append(shown.Signatures, signature)
	}
	return &shown
}

// stored returns an image. It returns nil if the image is not stored, or not known to be in the
// reference's repository: a writer of streams may name any digest in a repository that they may
// pull from, and must not see what is in others.
func (r *Reader) stored(ctx context.Context, name, dockerImageReference string) (*imagev1.Image, error) {
	ref, err := reference.Parse(dockerImageReference)
	if err != nil {
		return nil, nil
	}
	obj, err := r.Images.Get(ctx, name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	image := *obj.(*imagev1.Image)
	if !imageregistry.IsIn(&image, ref.Bare()) {
		return nil, nil
	}
	return &image, nil
}
