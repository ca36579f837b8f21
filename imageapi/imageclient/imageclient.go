// Package imageclient is a typed client for the images of an API server that speaks
// image.openshift.io/v1: this one, or OpenShift's.
//
//	client, err := imageclient.New(config)
//	list, err := client.List(ctx, metav1.ListOptions{Limit: 500})
package imageclient

import (
	"context"
	"encoding/json"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/imagejson"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

var (
	scheme         = runtime.NewScheme()
	codecs         = serializer.NewCodecFactory(scheme)
	parameterCodec = runtime.NewParameterCodec(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	utilruntime.Must(imagev1.Install(scheme))
	utilruntime.Must(packages.Install(scheme))
}

// Client reads and writes Images: Get, List, Watch, Create, Update, Patch, Delete,
// DeleteCollection.
type Client struct {
	*gentype.ClientWithList[*imagev1.Image, *imagev1.ImageList]
	signatures *gentype.Client[*imagev1.ImageSignature]
	streams    func(namespace string) *gentype.ClientWithList[*imagev1.ImageStream, *imagev1.ImageStreamList]
	tags       *gentype.ClientWithList[*imagev1.ImageTag, *imagev1.ImageTagList]
	packages   *gentype.Client[*packages.ImagePackages]
	records    records
	rest       rest.Interface
	brief      rest.Interface
}

// New returns a client for the server of config, which is not changed.
func New(config *rest.Config) (*Client, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion = &imagev1.GroupVersion
	c.APIPath = "/apis"
	c.NegotiatedSerializer = imagejson.NewClientSerializer(codecs)
	if c.UserAgent == "" {
		c.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	r, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.NegotiatedSerializer = imagejson.NewBriefSerializer(codecs)
	brief, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.GroupVersion, c.NegotiatedSerializer = &packages.GroupVersion, codecs.WithoutConversion()
	own, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Client{
		records: records{rest: own},
		ClientWithList: gentype.NewClientWithList[*imagev1.Image, *imagev1.ImageList](
			"images", r, parameterCodec, "",
			func() *imagev1.Image { return &imagev1.Image{} },
			func() *imagev1.ImageList { return &imagev1.ImageList{} },
		),
		signatures: gentype.NewClient[*imagev1.ImageSignature](
			"imagesignatures", r, parameterCodec, "",
			func() *imagev1.ImageSignature { return &imagev1.ImageSignature{} },
		),
		streams: func(namespace string) *gentype.ClientWithList[*imagev1.ImageStream, *imagev1.ImageStreamList] {
			return gentype.NewClientWithList[*imagev1.ImageStream, *imagev1.ImageStreamList](
				"imagestreams", r, parameterCodec, namespace,
				func() *imagev1.ImageStream { return &imagev1.ImageStream{} },
				func() *imagev1.ImageStreamList { return &imagev1.ImageStreamList{} },
			)
		},
		tags: gentype.NewClientWithList[*imagev1.ImageTag, *imagev1.ImageTagList](
			"imagetags", r, parameterCodec, tags.Namespace,
			func() *imagev1.ImageTag { return &imagev1.ImageTag{} },
			func() *imagev1.ImageTagList { return &imagev1.ImageTagList{} },
		),
		packages: gentype.NewClient[*packages.ImagePackages](
			packages.Resource, own, parameterCodec, "",
			func() *packages.ImagePackages { return &packages.ImagePackages{} },
		),
		rest:  r,
		brief: brief,
	}, nil
}

// ListBrief is List for a caller that needs no content: the Images may lack manifest, config and
// metadata.
func (c *Client) ListBrief(ctx context.Context, opts metav1.ListOptions) (*imagev1.ImageList, error) {
	list := &imagev1.ImageList{}
	return list, c.brief.Get().Resource("images").VersionedParams(&opts, parameterCodec).Do(ctx).Into(list)
}

// CreateSignature adds a signature, named <image name>@<signature name>, to its image.
func (c *Client) CreateSignature(ctx context.Context, signature *imagev1.ImageSignature, opts metav1.CreateOptions) (*imagev1.ImageSignature, error) {
	return c.signatures.Create(ctx, signature, opts)
}

// DeleteSignature removes the signature of that name from its image.
func (c *Client) DeleteSignature(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.signatures.Delete(ctx, name, opts)
}

// GetTag reads an ImageTag of package tags' namespace.
func (c *Client) GetTag(ctx context.Context, name string, opts metav1.GetOptions) (*imagev1.ImageTag, error) {
	return c.tags.Get(ctx, name, opts)
}

// ListTags lists ImageTags of package tags' namespace.
func (c *Client) ListTags(ctx context.Context, opts metav1.ListOptions) (*imagev1.ImageTagList, error) {
	return c.tags.List(ctx, opts)
}

// UpdateTag writes the status of an ImageTag, and makes one that is not there.
func (c *Client) UpdateTag(ctx context.Context, tag *imagev1.ImageTag, opts metav1.UpdateOptions) (*imagev1.ImageTag, error) {
	return c.tags.UpdateStatus(ctx, tag, opts)
}

// PatchTag changes the metadata of an ImageTag by a merge patch.
func (c *Client) PatchTag(ctx context.Context, name string, patch []byte, opts metav1.PatchOptions) (*imagev1.ImageTag, error) {
	return c.tags.Patch(ctx, name, types.MergePatchType, patch, opts)
}

// ConfirmTags sends the server the times at which registries confirmed where references lead, for
// at most tags.MaxChecks references. OpenShift has no such path.
func (c *Client) ConfirmTags(ctx context.Context, checks []tags.Check) error {
	body, err := json.Marshal(checks)
	if err != nil {
		return err
	}
	return c.rest.Post().AbsPath(tags.ChecksPath).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}

// DeleteTag deletes an ImageTag of package tags' namespace.
func (c *Client) DeleteTag(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.tags.Delete(ctx, name, opts)
}

// WatchTags watches ImageTags of package tags' namespace.
func (c *Client) WatchTags(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.tags.Watch(ctx, opts)
}

// GetPackages reads which packages the image of a digest has. OpenShift has no such resource.
func (c *Client) GetPackages(ctx context.Context, digest string, opts metav1.GetOptions) (*packages.ImagePackages, error) {
	return c.packages.Get(ctx, digest, opts)
}

// CreatePackages writes which packages an image has.
func (c *Client) CreatePackages(ctx context.Context, list *packages.ImagePackages, opts metav1.CreateOptions) (*packages.ImagePackages, error) {
	return c.packages.Create(ctx, list, opts)
}

// UpdatePackages writes again which packages an image has.
func (c *Client) UpdatePackages(ctx context.Context, list *packages.ImagePackages, opts metav1.UpdateOptions) (*packages.ImagePackages, error) {
	return c.packages.Update(ctx, list, opts)
}

// ListStreams lists the ImageStreams of all namespaces.
func (c *Client) ListStreams(ctx context.Context, opts metav1.ListOptions) (*imagev1.ImageStreamList, error) {
	return c.streams(metav1.NamespaceAll).List(ctx, opts)
}

// CreateStream creates an ImageStream in its namespace.
func (c *Client) CreateStream(ctx context.Context, stream *imagev1.ImageStream, opts metav1.CreateOptions) (*imagev1.ImageStream, error) {
	return c.streams(stream.Namespace).Create(ctx, stream, opts)
}
