// Package imagestreamimage serves the images of streams, one by one.
package imagestreamimage

import (
	"context"
	"fmt"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// REST serves the images of streams, <stream>@<digest>, one by one.
type REST struct {
	virtual.Resource
	rest.TableConvertor
	shown *imagestream.Reader
}

// NewREST returns the storage of ImageStreamImages; shown are the streams that they are of.
func NewREST(shown *imagestream.Reader) *REST {
	return &REST{virtual.Resource{Object: &imagev1.ImageStreamImage{}, Namespaced: true, Singular: "imagestreamimage"}, streamImageTable, shown}
}

var (
	_ rest.Getter               = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.ShortNamesProvider   = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// ShortNames is part of rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"isimage"} }

// Get is part of rest.Getter. The image is one that a tag of the stream leads or has led to, or one
// that such an index lists.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	streamName, id, ok := strings.Cut(name, "@")
	if !ok || streamName == "" || id == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not the name of an image of a stream: it must be <stream>@<digest>; the beginning of the digest is enough", name))
	}
	obj, err := r.shown.Streams.Get(ctx, streamName, options)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(imagev1.Resource("imagestreamimages"), name)
	}
	if err != nil {
		return nil, err
	}
	stream, err := r.shown.Everything(ctx, obj.(*imagev1.ImageStream))
	if err != nil {
		return nil, err
	}
	found, err := r.shown.Find(ctx, stream, id)
	if err != nil {
		return nil, err
	}
	if found.Image == nil {
		return nil, apierrors.NewNotFound(imagev1.Resource("images"), found.Name)
	}
	image := r.shown.OfStream(ctx, found.Image, found.Reference)
	image.DockerImageManifest, image.DockerImageConfig = "", ""
	return &imagev1.ImageStreamImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: stream.Namespace, Name: stream.Name + "@" + found.Name, CreationTimestamp: image.CreationTimestamp, Annotations: stream.Annotations},
		Image:      *image,
	}, nil
}

// streamImageTable prints ImageStreamImages. The columns are OpenShift's.
var streamImageTable = table.Of[*imagev1.ImageStreamImage]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The stream and the digest."},
		{Name: "Updated", Type: "string", Description: "Time since the image was stored."},
		{Name: "Image Reference", Type: "string", Priority: 1, Description: "The reference that the image can be pulled by."},
		{Name: "Image Name", Type: "string", Priority: 1, Description: "The Image."},
	},
	Rows: func(image *imagev1.ImageStreamImage) [][]any {
		return [][]any{{image.Name, imagestream.Ago(image.CreationTimestamp), image.Image.DockerImageReference, image.Image.Name}}
	},
}
