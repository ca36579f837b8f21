package imageapi_test

import (
	"context"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const recordedRepository = "registry.example.com/acme/web"

// recording are storages to which items are recorded.
type recording struct {
	*imageapi.Storages
	t *testing.T
}

func newRecording(t *testing.T, opts imageapi.Options) recording {
	t.Helper()
	opts.Scheme, opts.Answerer.Policies = scheme, holding{}
	all, err := imageapi.New(kubestore.NewGetter(dbtest.Open(t), codecs, kubestore.Options{}), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.Images.Destroy)
	return recording{all, t}
}

func (r recording) record(items ...record.Item) ([]record.Result, error) {
	ctx := genericapirequest.WithUser(requestContext(), &user.DefaultInfo{Name: "importer"})
	obj, err := r.Records.Create(ctx, &record.ImageRecord{Spec: record.ImageRecordSpec{Items: items}}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*record.ImageRecord).Status.Items, nil
}

func (r recording) must(items ...record.Item) []record.Result {
	r.t.Helper()
	results, err := r.record(items...)
	if err != nil {
		r.t.Fatal(err)
	}
	return results
}

func (r recording) image(name string) *imagev1.Image {
	r.t.Helper()
	obj, err := r.Images.Get(requestContext(), name, &metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*imagev1.Image)
}

func (r recording) tag(ref string) *imagev1.ImageTag {
	r.t.Helper()
	parsed, err := reference.Parse(ref)
	if err != nil {
		r.t.Fatal(err)
	}
	obj, err := r.TagStatus.Get(genericapirequest.WithNamespace(requestContext(), tags.Namespace), tags.Name(parsed), &metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return obj.(*imagev1.ImageTag)
}

// recordedImage is what an import reads of an image under a tag.
func recordedImage(t *testing.T, tag string, change func(*record.Image)) record.Item {
	t.Helper()
	image := ociImage(t)
	item := record.Image{
		Name: image.Name, Repository: recordedRepository, DockerImageReference: image.DockerImageReference, DockerImageManifest: image.DockerImageManifest, DockerImageConfig: image.DockerImageConfig,
		Annotations: map[string]string{annotation.References: `["` + recordedRepository + ":" + tag + `"]`},
	}
	if change != nil {
		change(&item)
	}
	return record.Item{Image: &item}
}

// One request makes images and tags. What is known is not written, what is new is added, and one
// bad item is no obstacle for the others.
func TestRecord(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	name := ociImage(t).Name
	bad := recordedImage(t, "bad", func(i *record.Image) { i.Name = "sha256:" + strings.Repeat("0", 64) })
	lead := record.Item{Tag: &record.Tag{Reference: recordedRepository + ":v1", Digest: name, Cause: "import"}}
	got := r.must(recordedImage(t, "v1", nil), bad, lead, recordedImage(t, "v2", nil))
	if got[0].Action != record.Created || got[1].Error == nil || got[1].Error.Reason != metav1.StatusReasonInvalid || got[2].Error != nil || got[3].Action != record.Updated {
		t.Fatalf("%+v", got)
	}
	image := r.image(name)
	if len(annotation.Known(image.Annotations)) != 2 || len(image.DockerImageLayers) == 0 || got[3].Metadata.UID != image.UID || got[3].Metadata.ResourceVersion != image.ResourceVersion {
		t.Errorf("the image is %+v, the answer %+v", image.ObjectMeta, got[3].Metadata)
	}
	if digest, _ := tags.Now(r.tag(recordedRepository + ":v1")); digest != name {
		t.Errorf("the tag leads to %q", digest)
	}
	if got := r.must(recordedImage(t, "v2", func(i *record.Image) { i.Stored = true })); got[0].Action != record.Unchanged || got[0].Metadata.ResourceVersion != image.ResourceVersion {
		t.Errorf("what is known was written: %+v", got)
	}
	// an import believes that the image is new, or that it is stored, and is wrong
	if got := r.must(recordedImage(t, "v3", nil)); got[0].Action != record.Updated {
		t.Errorf("%+v", got)
	}
}

// The history of a tag is in the order in which its registry was asked: one who asked before others
// wrote must ask again, and writes nothing.
func TestRecordOfATagThatOthersWrote(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	const ref = recordedRepository + ":v1"
	first, second := ociImage(t).Name, "sha256:"+strings.Repeat("1", 64)
	r.must(recordedImage(t, "v1", nil))
	lead := func(version, digest string) record.Result {
		return r.must(record.Item{Tag: &record.Tag{Reference: ref, Version: version, Digest: digest, Absent: digest == ""}})[0]
	}
	if got := lead("", first); got.Again || got.Error != nil {
		t.Fatalf("%+v", got)
	}
	before := r.tag(ref).ResourceVersion
	if got := lead("", second); !got.Again || got.Led != first {
		t.Errorf("one who knew of no tag: %+v", got)
	}
	alone := record.Item{Tag: &record.Tag{Reference: ref, Digest: second, Alone: true}}
	if got := r.must(alone)[0]; !got.Again || len(got.Left) > 0 {
		t.Errorf("one who knew of no image: %+v", got)
	}
	if got := lead(before, second); got.Again || got.Led != first || len(got.Left) != 1 || got.Left[0] != first {
		t.Errorf("a tag that has moved: %+v", got)
	}
	if got := lead(before, ""); !got.Again {
		t.Errorf("one who asked before it moved: %+v", got)
	}
	if items := r.tag(ref).Status.Items; len(items) != 2 || items[0].Image != second {
		t.Errorf("the history is %+v", items)
	}
	if by := r.tag(ref).Annotations[tags.By]; !strings.Contains(by, "importer") {
		t.Errorf("written by %s", by)
	}
	for _, known := range annotation.Known(r.image(first).Annotations) {
		if known.Tag != "" {
			t.Errorf("the image is still known as %s", known)
		}
	}
	if got := lead(r.tag(ref).ResourceVersion, ""); got.Again || got.Error != nil {
		t.Errorf("a tag that is gone: %+v", got)
	}
	if digest, known := tags.Now(r.tag(ref)); digest != "" || !known {
		t.Errorf("it leads to %q", digest)
	}
}

// An edit of a user between two records stays.
func TestRecordKeepsWhatUsersWrote(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	name := ociImage(t).Name
	r.must(recordedImage(t, "v1", nil))
	image := r.image(name)
	image.Labels = map[string]string{"team": "blue"}
	image.Annotations["example.com/note"] = "keep"
	if _, _, err := r.Images.Update(requestContext(), name, rest.DefaultUpdatedObjectInfo(image), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.must(recordedImage(t, "v2", nil))
	if image := r.image(name); image.Labels["team"] != "blue" || image.Annotations["example.com/note"] != "keep" || len(annotation.Known(image.Annotations)) != 2 {
		t.Errorf("%+v", image.ObjectMeta)
	}
}

// refusing allows all but one verb of one resource.
type refusing struct{ verb, resource string }

func (a refusing) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	resource := what.GetResource()
	if what.GetSubresource() != "" {
		resource += "/" + what.GetSubresource()
	}
	if what.GetVerb() == a.verb && resource == a.resource {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Who may record is who may write the same by other requests.
func TestRecordNeedsTheRightsOfOtherRequests(t *testing.T) {
	t.Parallel()
	for _, refused := range []refusing{{"create", "images"}, {"update", "images"}, {"create", "imagetags/status"}, {"update", "imagetags/status"}} {
		r := newRecording(t, imageapi.Options{Authorizer: refused})
		name := ociImage(t).Name
		_, err := r.record(recordedImage(t, "v1", nil), record.Item{Tag: &record.Tag{Reference: recordedRepository + ":v1", Digest: name}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "importer may not "+refused.verb+" "+refused.resource) {
			t.Errorf("%v: %v", refused, err)
		}
		if _, err := r.Images.Get(requestContext(), name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%v: something is stored: %v", refused, err)
		}
	}
}

// A record says what was found. What that is worth, the server says, whatever the record claims.
func TestRecordCannotForgeVerdicts(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{Images: imageregistry.Options{Verifier: distrusting{}}})
	name := ociImage(t).Name
	forged := map[string]string{
		annotation.References: `["` + recordedRepository + `:v1"]`, annotation.Verdicts: `{"` + recordedRepository + `":"True"}`, annotation.Policy: "forged", annotation.ArtifactType: "forged",
	}
	for range 2 { // a creation, and an update
		got := r.must(recordedImage(t, "v1", func(i *record.Image) {
			i.Annotations, i.Searched = forged, true
			i.Signatures = []record.Signature{{Name: name + "@s", Type: "atomic", Content: []byte("signature")}}
		}))
		if got[0].Error != nil {
			t.Fatalf("%+v", got[0].Error)
		}
		image := r.image(name)
		if image.Annotations[annotation.Verdicts] == forged[annotation.Verdicts] || image.Annotations[annotation.Policy] == "forged" || image.Annotations[annotation.ArtifactType] != "" {
			t.Errorf("annotations %v", image.Annotations)
		}
		if len(image.Signatures) != 1 || len(image.Signatures[0].Conditions) != 2 || image.Signatures[0].Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("signatures %+v", image.Signatures)
		}
		forged["example.com/other"] = "an update"
	}
}

// distrusting trusts no signature.
type distrusting struct{}

func (distrusting) Current(context.Context) error { return nil }

func (distrusting) Verify(_ context.Context, image *imagev1.Image, _ func(string) ([]*imagev1.Image, error)) bool {
	for i := range image.Signatures {
		image.Signatures[i].Conditions = []imagev1.SignatureCondition{condition(verdicts.Trusted, "False", 1), condition(verdicts.ForImage, "True", 1)}
	}
	return true
}
