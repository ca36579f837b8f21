package imageapi_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

var (
	scheme = newScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, metav1.Unversioned)
	utilruntime.Must(imageapi.Install(s))
	utilruntime.Must(packages.Install(s))
	return s
}

// ctx is the context of a request for a cluster-scoped resource.
func requestContext() context.Context {
	return genericapirequest.WithNamespace(genericapirequest.NewContext(), metav1.NamespaceNone)
}

// storages is the REST storage over a database of the test's own.
type storages struct {
	images interface {
		rest.StandardStorage
		rest.TableConvertor
	}
	signatures interface {
		rest.Creater
		rest.GracefulDeleter
	}
}

func newStorages(t testing.TB, verifier imageregistry.Verifier) storages {
	t.Helper()
	return newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verifier: verifier}})
}

func newStoragesWith(t testing.TB, opts imageapi.Options) (s storages) {
	t.Helper()
	return newStoragesOn(t, dbtest.Open(t), opts)
}

func newStoragesOn(t testing.TB, d *db.DB, opts imageapi.Options) (s storages) {
	t.Helper()
	getter := kubestore.NewGetter(d, codecs, kubestore.Options{})
	opts.Scheme = scheme
	opts.Answerer.Policies = holding{}
	m, err := imageapi.New(getter, opts)
	if err != nil {
		t.Fatal(err)
	}
	s.images, s.signatures = m.Images, m.Signatures
	t.Cleanup(s.images.Destroy)
	return s
}

// holding has the verdict for a reference be what the image holds for its repository.
type holding struct{}

// Set is part of answers.Policies.
func (holding) Set(context.Context) (*policy.Set, error) { return nil, nil }

// Judge is part of answers.Policies.
func (holding) Judge(_ context.Context, q answers.Asked) (j answers.Judgement, err error) {
	for _, v := range signatures.Held(q.Image) {
		if v.Place == q.Reference.String() || v.Place == q.Reference.Name() {
			j.Verdict = v.Verdict
			return j, nil
		}
	}
	return j, nil
}

func (s storages) create(image *imagev1.Image) (*imagev1.Image, error) {
	obj, err := s.images.Create(requestContext(), image.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

func (s storages) mustCreate(t testing.TB, image *imagev1.Image) *imagev1.Image {
	t.Helper()
	created, err := s.create(image)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func (s storages) update(image *imagev1.Image) (*imagev1.Image, error) {
	obj, _, err := s.images.Update(requestContext(), image.Name, rest.DefaultUpdatedObjectInfo(image.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

func (s storages) get(t testing.TB, name string) *imagev1.Image {
	t.Helper()
	obj, err := s.images.Get(requestContext(), name, &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*imagev1.Image)
}

// read returns a file of package manifest's test data.
func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "internal", "image", "manifest", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// bareImage is an Image as an importer sends it: bytes, and nothing computed. config may be "".
func bareImage(t testing.TB, manifestFile, configFile string) *imagev1.Image {
	t.Helper()
	raw := read(t, manifestFile)
	m, err := manifest.Parse([]byte(raw), "")
	if err != nil {
		t.Fatal(err)
	}
	image := &imagev1.Image{
		ObjectMeta:           metav1.ObjectMeta{Name: m.Digest},
		DockerImageReference: "registry.example.com/acme/web@" + m.Digest,
		DockerImageManifest:  raw,
	}
	if configFile != "" {
		image.DockerImageConfig = read(t, configFile)
	}
	return image
}

func ociImage(t testing.TB) *imagev1.Image { return bareImage(t, "oci-image.json", "oci-config.json") }

// plainImage is an Image without a manifest, valid as it stands.
func plainImage() *imagev1.Image {
	return &imagev1.Image{
		ObjectMeta:                 metav1.ObjectMeta{Name: "plain"},
		DockerImageReference:       "registry.example.com/acme/plain:1",
		DockerImageMetadata:        runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"x","Architecture":"s390x"}`)},
		DockerImageMetadataVersion: "1.0",
	}
}

func signature(image, name, signatureType, content string) imagev1.ImageSignature {
	return imagev1.ImageSignature{
		ObjectMeta: metav1.ObjectMeta{Name: image + "@" + name},
		Type:       signatureType,
		Content:    []byte(content),
	}
}

// problems returns "<error type> <field>" of each error, in order.
func problems(errs field.ErrorList) []string {
	out := []string{}
	for _, e := range errs {
		out = append(out, string(e.Type)+" "+e.Field)
	}
	return out
}

func sha512(s string) string { return digest.SHA512.FromString(s).String() }
