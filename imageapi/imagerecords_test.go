package imageapi_test

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
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

// An item of what is known has no content. The server takes what it has, and writes nothing. If it
// does not have it, or if anything is new of it, it says so.
func TestRecordOfWhatIsKnown(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{Images: imageregistry.Options{Verifier: distrusting{}}})
	name := ociImage(t).Name
	found := func(i *record.Image) {
		i.Searched = true
		i.Signatures = []record.Signature{{Name: name + "@s", Type: "atomic", Content: []byte("signature")}}
		i.Annotations[annotation.Repositories] = `{"` + recordedRepository + `":{"signatures":["s"]}}`
	}
	known := func(tag string, change func(*record.Image)) record.Item {
		return recordedImage(t, tag, func(i *record.Image) {
			if change != nil {
				change(i)
			}
			i.Known, i.DockerImageManifest, i.DockerImageConfig = true, "", ""
			for n := range i.Signatures {
				i.Signatures[n].Content = nil
			}
		})
	}
	if got := r.must(known("v1", nil)); !got[0].Unread || got[0].Error != nil {
		t.Errorf("what is not stored: %+v", got[0])
	}
	if _, err := r.Images.Get(requestContext(), name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was made: %v", err)
	}
	r.must(recordedImage(t, "v1", found))
	image := r.image(name)
	for _, item := range []record.Item{known("v1", nil), known("v1", found)} {
		got := r.must(item)[0]
		if got.Unread || got.Action != record.Unchanged || got.Metadata.UID != image.UID || got.Metadata.ResourceVersion != image.ResourceVersion || got.Metadata.Annotations[annotation.Platform] != image.Annotations[annotation.Platform] || got.Manifest != "" {
			t.Errorf("what is known: %+v", got)
		}
	}
	elsewhere := func(i *record.Image) {
		i.Repository = "registry.example.com/other/app"
		i.Annotations = nil
	}
	unread := map[string]record.Item{
		"another tag":        known("v2", found),
		"another repository": known("v1", elsewhere),
		"a new signature": known("v1", func(i *record.Image) {
			found(i)
			i.Signatures = append(i.Signatures, record.Signature{Name: name + "@t", Type: "atomic"})
		}),
		"no signature any more": known("v1", func(i *record.Image) { i.Searched = true }),
		"a search that failed": known("v1", func(i *record.Image) {
			i.Searched = true
			i.Annotations[annotation.Repositories] = `{"` + recordedRepository + `":{"unread":"away"}}`
		}),
	}
	for what, item := range unread {
		if got := r.must(item)[0]; !got.Unread || got.Error != nil || got.Metadata != nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if after := r.image(name); after.ResourceVersion != image.ResourceVersion {
		t.Errorf("it was written: %+v", after.ObjectMeta)
	}
	if _, err := r.record(recordedImage(t, "v1", func(i *record.Image) { i.Known = true })); !apierrors.IsInvalid(err) {
		t.Errorf("known, with content: %v", err)
	}
}

// One who asks for tags learns where they lead and what is stored of these images in the
// repository, and whether nothing is recorded of it. Nothing is written.
func TestRecordAnswersForTags(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	name := ociImage(t).Name
	ask := func(refs ...string) []record.Result {
		t.Helper()
		var items []record.Item
		for _, ref := range refs {
			items = append(items, record.Item{Tag: &record.Tag{Reference: ref, Asked: true}})
		}
		return r.must(items...)
	}
	const v1, v2 = recordedRepository + ":v1", recordedRepository + ":v2"
	for _, got := range ask(v1, v2) {
		if !got.Alone || got.Error != nil || got.Led+got.Version != "" || got.Unread || got.Metadata != nil {
			t.Errorf("of a new repository: %+v", got)
		}
	}
	found := func(i *record.Image) {
		i.Annotations[annotation.References] = `["` + v1 + `","` + v2 + `"]`
		i.Annotations["example.com/note"] = "not told"
	}
	elsewhere := func(i *record.Image) {
		i.Repository = "registry.example.com/other/app"
		i.Annotations = map[string]string{annotation.References: `["registry.example.com/other/app:v1"]`}
	}
	r.must(recordedImage(t, "v1", found), recordedImage(t, "v1", elsewhere))
	if got := ask(v1)[0]; got.Alone || got.Led != "" {
		t.Errorf("an image is recorded there: %+v", got)
	}
	failed := recordedRepository + ":failed"
	r.must(record.Item{Tag: &record.Tag{Reference: v1, Digest: name}}, record.Item{Tag: &record.Tag{Reference: failed, Digest: name}})
	r.must(record.Item{Tag: &record.Tag{Reference: failed, Version: r.tag(failed).ResourceVersion, Reason: "Unreachable", Message: "away"}})
	before := r.tag(v1)
	results := ask(v1, v2, failed)
	got, image := results[0], r.image(name)
	if got.Led != name || got.Version != before.ResourceVersion || got.Metadata.UID != image.UID || len(annotation.Known(got.Metadata.Annotations)) != 2 || got.Metadata.Annotations["example.com/note"] != "" {
		t.Errorf("%+v %+v", got, got.Metadata)
	}
	if got := results[1]; got.Alone || got.Unread || got.Version != "" {
		t.Errorf("a new tag of a known repository: %+v", got)
	}
	if got := results[2]; !got.Unread || got.Metadata != nil {
		t.Errorf("a tag whose last look failed: %+v", got)
	}
	fresh := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation.References: `["` + v1 + `"]`}}}
	repository, err := reference.ParseRepository(recordedRepository)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Knows(fresh, repository, true) {
		t.Error("nothing is new of it")
	}
	fresh.Annotations[annotation.Repositories] = `{"` + recordedRepository + `":{"unread":"away"}}`
	if got.Knows(fresh, repository, true) {
		t.Error("a search that failed is new")
	}
	if after := r.tag(v1); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("it was written: %+v", after.ObjectMeta)
	}
	if _, err := r.record(record.Item{Tag: &record.Tag{Reference: v1, Asked: true, Digest: name}}); !apierrors.IsInvalid(err) {
		t.Errorf("asked and told: %v", err)
	}
}

// One who asks for a repository learns which of its tags lead to an image, or that nothing is
// recorded of it. Of many tags the answer says that they are to be listed.
func TestRecordAnswersForRepositories(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	name := ociImage(t).Name
	ask := func(repository string) record.Result {
		t.Helper()
		return r.must(record.Item{Repository: &record.Repository{Name: repository}})[0]
	}
	lead := func(tag string) {
		t.Helper()
		if got := r.must(record.Item{Tag: &record.Tag{Reference: recordedRepository + ":" + tag, Digest: name}}); got[0].Error != nil {
			t.Fatalf("%+v", got)
		}
	}
	if got := ask(recordedRepository); !got.Alone || got.Error != nil || len(got.Tags) > 0 {
		t.Errorf("of a new repository: %+v", got)
	}
	r.must(recordedImage(t, "v1", nil))
	if got := ask(recordedRepository); got.Alone || got.Unread || len(got.Tags) > 0 {
		t.Errorf("an image is recorded there: %+v", got)
	}
	lead("v1")
	lead("gone")
	r.must(record.Item{Tag: &record.Tag{Reference: recordedRepository + ":gone", Version: r.tag(recordedRepository + ":gone").ResourceVersion, Absent: true}})
	if got := ask(recordedRepository); got.Alone || !maps.Equal(got.Tags, map[string]string{"v1": name}) {
		t.Errorf("%+v", got)
	}
	if got := ask(recordedRepository + "/other"); !got.Alone {
		t.Errorf("of a repository below it: %+v", got)
	}
	for i := range record.MaxTags {
		lead(fmt.Sprint(i))
	}
	if got := ask(recordedRepository); !got.Unread || got.Alone || len(got.Tags) > 0 {
		t.Errorf("of a repository with many tags: %+v", got)
	}
	if _, err := r.record(record.Item{Repository: &record.Repository{Name: "acme/web"}}); !apierrors.IsInvalid(err) {
		t.Errorf("of a short name: %v", err)
	}
}

// Who may not list gets no answer for a repository, and can record all the same.
func TestRecordAnswersForRepositoriesWhoMayList(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"images", "imagetags"} {
		r := newRecording(t, imageapi.Options{Authorizer: refusing{"list", resource}})
		got := r.must(recordedImage(t, "v1", nil), record.Item{Repository: &record.Repository{Name: recordedRepository}})
		if got[0].Action != record.Created || got[1].Error == nil || got[1].Error.Reason != metav1.StatusReasonForbidden || got[1].Alone || len(got[1].Tags) > 0 {
			t.Errorf("%s: %+v", resource, got)
		}
	}
}

// Of a known index the answer has the manifest, by which the importer goes on to the platforms.
func TestRecordOfAKnownIndex(t *testing.T) {
	t.Parallel()
	r := newRecording(t, imageapi.Options{})
	raw := `{"schemaVersion":2,"mediaType":"` + manifest.MediaTypeOCIIndex + `","manifests":[{"mediaType":"` + manifest.MediaTypeOCIManifest + `","digest":"` + ociImage(t).Name + `","size":1}]}`
	index := func(change func(*record.Image)) record.Item {
		return recordedImage(t, "v1", func(i *record.Image) {
			i.Name, i.DockerImageManifest, i.DockerImageManifestMediaType, i.DockerImageConfig = manifest.Digest([]byte(raw)), raw, manifest.MediaTypeOCIIndex, ""
			i.DockerImageReference = recordedRepository + "@" + i.Name
			change(i)
		})
	}
	if got := r.must(index(func(*record.Image) {})); got[0].Action != record.Created {
		t.Fatalf("%+v", got[0])
	}
	got := r.must(index(func(i *record.Image) { i.Known, i.DockerImageManifest = true, "" }))[0]
	if got.Action != record.Unchanged || got.Manifest != raw || got.MediaType != manifest.MediaTypeOCIIndex {
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

// Who is told what is stored is who may read it by other requests.
func TestRecordTellsWhoMayRead(t *testing.T) {
	t.Parallel()
	known := recordedImage(t, "v1", func(i *record.Image) { i.Known, i.DockerImageManifest, i.DockerImageConfig = true, "", "" })
	asked := record.Item{Tag: &record.Tag{Reference: recordedRepository + ":v1", Asked: true}}
	for _, tt := range []struct {
		item    record.Item
		refused refusing
		told    bool
	}{
		{known, refusing{"get", "images"}, false}, {known, refusing{"get", "imagetags"}, true},
		{asked, refusing{"get", "images"}, false}, {asked, refusing{"get", "imagetags"}, false},
		{recordedImage(t, "v1", nil), refusing{"get", "images"}, true},
	} {
		_, err := newRecording(t, imageapi.Options{Authorizer: tt.refused}).record(tt.item)
		if tt.told != (err == nil) || !tt.told && !apierrors.IsForbidden(err) {
			t.Errorf("%+v, refused %v: %v", tt.item, tt.refused, err)
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
